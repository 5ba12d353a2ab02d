"""A real SGLang server: its start and end, generation, and weights by memory and by disk."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Prompt, Row
from rlrun.runner.contracts.carriers import (
    GenerateRequest,
    Generation,
    RequestOptions,
    Sampling,
    TrainSequence,
)
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.parsing import ModelLimits
from rlrun.runner.engines.pool.gateway import Gateway
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.engines.pool.served_model import ServedModel
from rlrun.runner.engines.process.server_process import last_error
from rlrun.runner.engines.sglang.server import SglangServer, command, environment, key_file
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.settings import RolloutSettings
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from rlrun.specs.safe_python import SAFE_PATH
from tests.child_processes import command_lines
from tests.converters.conversions import convert
from tests.runner.engines.partial_case import check_a_sample_goes_on_by_new_weights
from tests.sglang_cpu.log_probs import largest_difference, log_probs_of, model_log_probs
from tests.sglang_cpu.policies import LocalPolicy
from tests.sglang_cpu.servers import ARGUMENTS, router_setup, tiny_setup
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE

PROMPT = np.arange(5, 25, dtype=np.int32)
WAYS: list[dict[str, object]] = [
    {"weight_sync": "tensor"},
    {"weight_sync": "tensor", "weight_bucket": 1},
    {"weight_sync": "broadcast", "weight_bucket": 1},
    {"weight_sync": "disk", "weight_bucket": 1, "weight_delta": "files"},
]


VOCABULARY = 4160
LONGEST, ENDLESS = 2048, 1900
"""Tokens of the server's longest sequence, and of responses that outlast an update of the weights."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three tiny models of one shape."""
    root = tmp_path_factory.mktemp("models")
    sizes = {"vocab": VOCABULARY, "max_position_embeddings": LONGEST}
    return [make_tiny_model(root / str(seed), seed=seed, **sizes) for seed in range(3)]


@pytest.fixture(scope="module")
def server(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    arguments = ARGUMENTS | {"enable_memory_saver": True}  # as in a job whose engines sleep
    folder = tmp_path_factory.mktemp("server")
    server = SglangServer(tiny_setup(folder, models[0], arguments=arguments, max_length=LONGEST))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def client(server: SglangServer) -> AsyncIterator[EngineClient]:
    # without the vocabulary, SGLang's name for its last token could not be told from a wrong one
    limits = ModelLimits(VOCABULARY)
    async with EngineClient(server.url, 120, 60, api_key="sesame", limits=limits) as client:
        yield client


def request(samples: int = 4, **sampling: object) -> GenerateRequest:
    fields = {"max_new_tokens": 24, "stop_token_ids": (1,)} | sampling
    return GenerateRequest("r", PROMPT, tuple(range(samples)), Sampling(**fields))  # type: ignore[arg-type]


def buffers() -> list[Path]:
    """Shared buffers that this process has made."""
    return list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))


class Twice:
    """Answers, is given three tokens, and answers again."""

    async def run(self, session: Session) -> Trajectory:
        one = Trajectory(session.prompt.tokens)
        for _ in range(2):
            one.add(await session.generate(one.tokens(), Sampling(12, stop_token_ids=(1,))))
            one.give([7, 8, 9])
        return one


async def test_a_conversation_goes_on_from_the_cache_and_is_recorded_exactly(
    client: EngineClient, models: list[Path]
) -> None:
    policy = RolloutContext(EnginePool([client]), None, None, 7, Twice(), deterministic=False)  # type: ignore[arg-type]
    executions = Executions(policy, RolloutSettings("rollout", 3, Sampling(64), 200, 64, PATIENCE))
    prompt = Prompt(Row("0", "p"), 0, PROMPT)
    for [one] in await executions.run(prompt, policy.engines.generate):
        tokens, log_probs, mask, _ = one.response()
        whole = Generation(tokens, log_probs, "stop", ())
        expected = model_log_probs(models[0], PROMPT, whole)
        assert np.abs(expected - log_probs)[mask == 1].max() < 1e-4
        assert mask.tolist() == [1] * len(one.turns[0].tokens) + [0] * 3 + [1] * len(one.turns[1].tokens)
        assert one.turns[1].cached_tokens >= len(PROMPT) + len(one.turns[0].tokens) - 1


async def test_log_probs_are_the_models_own_before_and_after_each_way_of_updating_it(
    client: EngineClient, models: list[Path], tmp_path: Path
) -> None:
    before = await client.generate(request())
    assert {span.version for one in before for span in one.versions} == {0}
    assert largest_difference(models[0], PROMPT, before) < 1e-4

    pool, version = EnginePool([client]), 0
    for settings in WAYS:
        policy = LocalPolicy(models[0], tmp_path, **settings)
        for number in (1, 2, 1):
            version += 1
            assert await pool.update_weights(policy.write(models[number], version)) == version
            updated = await client.generate(request())
            assert {span.version for one in updated for span in one.versions} == {version}
            assert largest_difference(models[number], PROMPT, updated) < 1e-4
        policy.writer.close()
        assert not buffers()
        assert not (tmp_path / "weights").exists()


async def test_masks_are_top_k_and_top_p_of_the_model_and_log_probs_are_over_them(
    client: EngineClient, models: list[Path], tmp_path: Path
) -> None:
    policy = LocalPolicy(models[0], tmp_path)
    pool = EnginePool([client])
    await pool.update_weights(policy.write(models[0], 50))
    policy.writer.close()
    cut = replace(
        request(3, top_p=0.9, top_k=40, temperature=0.7), options=RequestOptions(return_sampling_mask=True)
    )
    whole = replace(request(1), id="whole")
    masked, [free] = await client.generate_batch([cut, whole])
    assert free.sampling_mask is None
    network = AutoModelForCausalLM.from_pretrained(models[0], dtype=torch.float32)
    for made in masked:
        mask, start = made.sampling_mask, len(PROMPT) - 1
        assert mask is not None
        assert len(mask) == len(made.tokens)
        tokens = torch.from_numpy(np.concatenate([PROMPT, made.tokens]).astype(np.int64))
        with torch.no_grad():
            logits = network(tokens[None]).logits[0, start:-1] / 0.7
        candidates = np.split(mask.ids, np.cumsum(mask.lengths)[:-1])
        for row, token, log_prob, own in zip(logits, made.tokens, made.log_probs, candidates, strict=True):
            ordered, order = row.softmax(-1).sort(descending=True)
            kept = (ordered.cumsum(-1) - ordered <= 0.9)[:40].sum()
            assert set(own.tolist()) == set(order[:kept].tolist())
            expected = row[token] - row[torch.from_numpy(own).long()].logsumexp(-1)
            assert abs(float(expected) - log_prob) < 1e-4


async def test_a_prefix_cached_before_an_update_is_not_used_after_it_while_requests_run(
    client: EngineClient, models: list[Path], tmp_path: Path
) -> None:
    pool, version = EnginePool([client]), 100
    for settings in WAYS:
        policy = LocalPolicy(models[0], tmp_path, **settings)
        assert await pool.update_weights(policy.write(models[1], version)) == version
        endless = replace(request(2, max_new_tokens=ENDLESS, min_new_tokens=ENDLESS), id="endless")
        running = asyncio.create_task(pool.generate(endless))
        await until_busy(client)
        await pool.generate(
            request(1)
        )  # a prompt is cached once it has been computed, which being busy is not
        assert max(one.cached_tokens for one in await pool.generate(request(1))) > 0
        during = replace(request(), id="during")
        _, meanwhile = await asyncio.gather(
            pool.update_weights(policy.write(models[2], version + 1)), pool.generate(during)
        )
        after = await pool.generate(request())
        assert {span.version for one in after for span in one.versions} == {version + 1}
        newest = [one for one in meanwhile if one.versions[0].version == version + 1]
        assert largest_difference(models[2], PROMPT, [*after, *newest]) < 1e-4
        await pool.abort_all()
        for one in await running:
            assert [span.version for span in one.versions] == [version, version + 1]
        version += 2
        policy.writer.close()


async def until_busy(client: EngineClient) -> None:
    """Return once a request runs: a server flushes its cache only while none does."""
    while True:
        try:
            await client.flush_cache()
        except EngineError:
            return


async def test_weights_that_are_not_there_are_refused(
    client: EngineClient, models: list[Path], tmp_path: Path
) -> None:
    policy = LocalPolicy(models[0], tmp_path, weight_sync="disk")
    assert await EnginePool([client]).update_weights(policy.write(models[2], 40)) == 40
    with pytest.raises(EngineError, match="answered 400"):
        await client.update_weights(FolderWeights("/nowhere", 0, 41))
    await client.resume()
    after = await client.generate(request())
    assert {span.version for one in after for span in one.versions} == {40}
    assert largest_difference(models[2], PROMPT, after) < 1e-4
    policy.writer.close()


async def test_other_bytes_and_another_version_than_were_sent_are_named(
    client: EngineClient, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, policy = (LocalPolicy(models[0], tmp_path, weight_sync="tensor") for _ in range(2))
    policy.corrupt = "model.layers.1.self_attn.k_proj.weight"
    pool = EnginePool([client])
    checksums = sent.write(models[1], 50).checksums
    held = "model.layers.1.self_attn.qkv_proj.weight"
    with pytest.raises(EngineError, match=rf"holds other bytes than were sent for {held} \(rank 0\)$"):
        await pool.update_weights(replace(policy.write(models[1], 50), checksums=checksums))

    async def rename_and_resume() -> None:
        await client._post("/update_weight_version", {"new_version": "7", "abort_all_requests": False})
        await EngineClient.resume(client)

    monkeypatch.setattr(client, "resume", rename_and_resume)
    with pytest.raises(EngineError, match="serves weights 7 after an update to 51"):
        await pool.update_weights(sent.write(models[1], 51))
    sent.writer.close()
    policy.writer.close()


async def test_samples_by_way_of_a_router_are_the_servers_own(client: EngineClient, tmp_path: Path) -> None:
    gateway = Gateway(router_setup(tmp_path))
    pool = EnginePool([client], send_sample=gateway.generate)
    await gateway.start(pool.slots)
    greedy = request(temperature=0.0)
    for routed, direct in zip(await pool.generate(greedy), await client.generate(greedy), strict=True):
        np.testing.assert_array_equal(routed.tokens, direct.tokens)
        np.testing.assert_allclose(routed.log_probs, direct.log_probs, atol=1e-4)
    drawn = await pool.generate(request())
    scores = await client.score([np.concatenate([PROMPT, one.tokens]) for one in drawn])
    for one, score in zip(drawn, scores, strict=True):
        np.testing.assert_allclose(one.log_probs, score[len(PROMPT) - 1 :], atol=1e-4)
    endless = request(max_new_tokens=400, min_new_tokens=400)
    running = asyncio.create_task(pool.generate(endless))
    while not running.done():
        await pool.abort(endless)
        await asyncio.sleep(0.05)
    assert {one.finish for one in await running} == {"abort"}
    await gateway.close()


async def test_an_abort_keeps_what_was_generated(client: EngineClient) -> None:
    running = asyncio.create_task(client.generate(request(2, max_new_tokens=ENDLESS, min_new_tokens=ENDLESS)))
    while not running.done():
        await client.abort_all()
        await asyncio.sleep(0)
    assert {one.finish for one in await running} == {"abort"}


async def test_a_sample_goes_on_by_new_weights(
    client: EngineClient, models: list[Path], tmp_path: Path
) -> None:
    first, second = models[:2]
    pool, policy = EnginePool([client]), LocalPolicy(first, tmp_path, weight_sync="tensor")
    await pool.update_weights(policy.write(first, 60))
    update = partial(pool.update_weights, policy.write(second, 61))
    # Single tokens of this server were up to 2.6e-3 off transformers; old weights in a cache are 1 to 7 off.
    await check_a_sample_goes_on_by_new_weights(client, (first, second), update, length=40, atol=1e-2)
    policy.writer.close()


async def test_a_server_gives_memory_away_by_tag_and_has_its_weights_again_by_the_next_update(
    client: EngineClient, models: list[Path], tmp_path: Path
) -> None:
    pool, policy = EnginePool([client]), LocalPolicy(models[0], tmp_path, weight_sync="tensor")
    assert await pool.update_weights(policy.write(models[1], 70)) == 70
    await pool.generate(request())  # leaves a prefix in the cache
    for _ in range(2):  # what is asleep is not told to sleep again, which would end a server
        await pool.sleep()
    update = policy.write(models[2], 71)
    for _ in range(2):
        await pool.wake("weights")
    assert await pool.update_weights(update) == 71
    await pool.wake("kv_cache")
    after = await pool.generate(request())
    assert {span.version for one in after for span in one.versions} == {71}
    assert largest_difference(models[2], PROMPT, after) < 1e-4
    policy.writer.close()


async def test_log_probs_of_given_tokens_are_the_models_own(client: EngineClient, models: list[Path]) -> None:
    """A teacher's: more sequences than go in one call, some of which begin as others do."""
    assert await client.update_weights(FolderWeights(str(models[2]), 0, 80)) == 80
    rng = np.random.default_rng(0)
    tokens = [rng.integers(5, 4000, length, dtype=np.int32) for length in range(4, 60, 4)]
    tokens += [tokens[-1], tokens[-1][:30], tokens[-1][:2]]
    lengths = [1 + number % (len(one) - 1) for number, one in enumerate(tokens)]
    sequences = [teacher_case(one, prompt) for one, prompt in zip(tokens, lengths, strict=True)]
    found = await ServedModel(EnginePool([client])).log_probs(sequences)
    network = AutoModelForCausalLM.from_pretrained(models[2], dtype=torch.float32)
    for values, one, prompt in zip(found, tokens, lengths, strict=True):
        np.testing.assert_allclose(values, log_probs_of(network, one, prompt), rtol=0, atol=1e-4)


async def test_the_most_probable_tokens_are_the_models_own(client: EngineClient, models: list[Path]) -> None:
    """A teacher's distribution at each token of its responses, of which some begin as others do."""
    assert await client.update_weights(FolderWeights(str(models[2]), 0, 85)) == 85
    rng = np.random.default_rng(0)
    tokens = [rng.integers(5, 4000, length, dtype=np.int32) for length in range(4, 60, 8)]
    tokens += [tokens[-1], tokens[-1][:30], tokens[-1][:2]]
    lengths = [1 + number % (len(one) - 1) for number, one in enumerate(tokens)]
    sequences = [teacher_case(one, prompt) for one, prompt in zip(tokens, lengths, strict=True)]
    teacher = ServedModel(EnginePool([client]), num_top=20)
    found = await teacher.outputs(["log_probs", "top_ids", "top_log_probs"], sequences)
    network = AutoModelForCausalLM.from_pretrained(models[2], dtype=torch.float32)
    for number, (one, prompt) in enumerate(zip(tokens, lengths, strict=True)):
        own = log_probs_of(network, one, prompt)
        np.testing.assert_allclose(found["log_probs"][number], own, rtol=0, atol=1e-4)
        check_top_tokens(
            network, one, prompt, *(found[name][number] for name in ("top_ids", "top_log_probs"))
        )


def check_top_tokens(
    network: torch.nn.Module, tokens: np.ndarray, prompt: int, ids: np.ndarray, log_probs: np.ndarray
) -> None:
    """The ids' log-probs, and that of all others, are the network's, and no other token is more probable."""
    with torch.no_grad():
        logits = network(input_ids=torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    everything = logits[prompt - 1 : -1].double().log_softmax(-1)
    chosen = torch.from_numpy(ids.astype(np.int64))
    expected = everything.gather(1, chosen)
    rest = everything.scatter(1, chosen, -torch.inf)
    np.testing.assert_allclose(log_probs[:, :-1], expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(log_probs[:, -1], rest.logsumexp(1), rtol=0, atol=1e-4)
    assert (rest.amax(1) <= expected.amin(1) + 1e-4).all()


def teacher_case(tokens: np.ndarray, prompt: int) -> TrainSequence:
    rest = np.zeros(len(tokens) - prompt, np.float32)
    return TrainSequence(tokens, prompt, rest + 1, rest, rest, "e")


async def test_a_stranger_may_not_generate(server: SglangServer) -> None:
    async with EngineClient(server.url) as stranger:
        with pytest.raises(EngineError, match="answered 401"):
            await stranger.generate(request())


def test_keys_are_on_no_command_line(server: SglangServer) -> None:
    lines = command_lines()
    assert any("sglang.launch_server" in line for line in lines)
    assert not any("sesame" in line for line in lines)
    server.check()
    assert server.memory() > 0


def test_a_server_that_cannot_start_gives_its_own_last_error(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    server = SglangServer(tiny_setup(tmp_path, tmp_path / "model"))
    with pytest.raises(EngineError, match=r"the SGLang server ended \(.*\): \S*Error: "):
        server.start()
    assert not (tmp_path / "server.keys.yaml").exists()
    lines = command_lines()
    assert not [line for line in lines if str(tmp_path) in line]


def test_a_port_that_is_taken_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = SglangServer(tiny_setup(tmp_path, tmp_path, port=port))
        message = rf"port {port} of 127\.0\.0\.1 is taken .*; choose another engine\.port"
        with pytest.raises(EngineError, match=message):
            server.start()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # starts a server, and test_sglang_job.py looks for what a job's server leaves
def test_stop_ends_everything_it_started_and_check_says_what_a_server_died_of(
    models: list[Path], tmp_path: Path
) -> None:
    server = SglangServer(tiny_setup(tmp_path, models[0]))
    server.start()
    server.check()
    members = set(server._members)
    assert len(members) > 2  # the server, its scheduler, its detokenizer
    assert server._process is not None
    server._process.kill()
    server._process.wait(PATIENCE)
    with pytest.raises(EngineError, match=r"the SGLang server ended \(signal SIGKILL\)"):
        server.check()
    server.stop()
    assert not [one for one in members if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_a_server_over_nodes_is_told_which_part_it_is_and_where_the_others_are(tmp_path: Path) -> None:
    whole = tiny_setup(tmp_path, tmp_path, tensor=16, gpus=("4", "5"), device="cuda")
    assert "--nnodes" not in command(whole, 30000)
    assert environment(whole, {"CUDA_VISIBLE_DEVICES": "4"})["CUDA_VISIBLE_DEVICES"] == "4,5"
    words = " ".join(command(replace(whole, nodes=2, node=1, meeting="10.0.0.7:5000"), 30000))
    assert "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.7:5000" in words
    alone = tiny_setup(tmp_path, tmp_path, device="cuda")
    assert environment(alone, {"CUDA_VISIBLE_DEVICES": "4"})["CUDA_VISIBLE_DEVICES"] == "4"
    on_cpu = tiny_setup(tmp_path, tmp_path)
    assert environment(on_cpu, {"CUDA_VISIBLE_DEVICES": "4"})["CUDA_VISIBLE_DEVICES"] == ""


def test_the_command_line_has_the_specs_arguments_last_and_no_key(tmp_path: Path) -> None:
    arguments = {"schedule_policy": "lpm", "disable_radix_cache": True, "enable_metrics": False}
    arguments |= {"lora_target_modules": ["q_proj", "v_proj"], "json_model_override_args": {"a": 1}}
    setup = tiny_setup(tmp_path, tmp_path, arguments=arguments, tensor=2)
    words = command(setup, 30000)
    given = "--schedule-policy lpm --disable-radix-cache --lora-target-modules q_proj v_proj"
    assert words[-8:] == [*given.split(), "--json-model-override-args", '{"a": 1}']
    assert words[words.index("--tp-size") + 1] == "2"
    assert "sesame" not in words
    assert json.loads(key_file(setup)) == {"api-key": "sesame", "admin-api-key": "sesame"}


def test_our_packages_are_kept_from_the_server(tmp_path: Path) -> None:
    setup = tiny_setup(tmp_path, tmp_path, environment={"A": "1"})
    found = environment(
        setup,
        {
            "PYTHONPATH": "/ours",
            "PYTHONEXECUTABLE": "/ours/python",
            "RAY_AUTH_TOKEN": "x",
            "HOME": "/root",
        },
    )
    ours = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false", "CUDA_VISIBLE_DEVICES": ""}
    direct = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    assert found == {"HOME": "/root", "A": "1", **SAFE_PATH, **ours, **direct}


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (
            "Traceback (most recent call last):\n  File x\nValueError: no such model\n",
            "ValueError: no such model",
        ),
        (
            "usage: launch_server.py\nlaunch_server.py: error: unrecognized arguments: --x\n\n",
            "launch_server.py: error: unrecognized arguments: --x",
        ),
        (
            "[2026-11-21 10:00:00] torch.OutOfMemoryError: CUDA out of memory\nKilled\n",
            "torch.OutOfMemoryError: CUDA out of memory",
        ),
        ("loading\nKilled\n\n", "Killed"),
        ("", "nothing"),
    ],
)
def test_the_last_error_of_a_log(output: str, error: str) -> None:
    assert last_error(output) == error


async def test_a_server_loads_what_was_converted_there_and_back(
    client: EngineClient, models: list[Path], tmp_path: Path
) -> None:
    """HF to DCP and back, in several files, as `rlrun convert` writes them."""
    middle = convert(models[1], "dcp", tmp_path / "dcp", shard_bytes=40_000)
    back = convert(middle, "hf", tmp_path / "back", shard_bytes=40_000)
    assert await client.update_weights(FolderWeights(str(back), 0, 99)) == 99
    assert largest_difference(models[1], PROMPT, await client.generate(request())) < 1e-4
