"""A real SGLang server with the adapters of several versions at a time."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlrun.converters.families.lora import MergedFolder
from rlrun.models.adapters import adapters
from rlrun.models.config_json import read_architecture
from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Sampling, TrainSequence
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.engines.client import wire
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.engines.pool.served_model import ServedModel
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.job.sync_probe import SyncProbe
from tests.converters.families.test_lora import make_adapter
from tests.runner.weights.adapter_trainer import LORA, ROOM, Trainer
from tests.sglang_cpu.log_probs import log_probs_of
from tests.sglang_cpu.servers import ARGUMENTS, tiny_setup
from tests.tiny_models import make_tiny_model

pytestmark = pytest.mark.slow

PROMPT = np.arange(5, 45, dtype=np.int32)
SERVER = {"enable_lora": True, "lora_backend": "torch_native", "max_lora_rank": LORA.rank}
SERVER |= {"enable_memory_saver": True, "enable_weights_cpu_backup": True}  # as in a job whose engines sleep
SERVER |= {"max_loras_per_batch": ROOM + 1, "max_loaded_loras": ROOM + 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocab=512)


@pytest.fixture
def trainer(model: Path, tmp_path: Path) -> Iterator[Trainer]:
    trainer = Trainer(model, tmp_path)
    yield trainer
    trainer.writer.close()


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller adapter of fewer matrices, which the server has from its start."""
    modules = {f"model.layers.{layer}.self_attn.q_proj": (64, 64) for layer in range(2)}
    modules |= {f"model.layers.{layer}.self_attn.v_proj": (32, 64) for layer in range(2)}
    modules |= {"model.layers.1.mlp.down_proj": (64, 96)}
    folder = tmp_path_factory.mktemp("judge") / "adapter"
    return make_adapter(folder, modules, rank=2, target_modules=["q_proj", "v_proj", "down_proj"])[0]


@pytest.fixture(scope="module")
def server(model: Path, judge: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    targets = sorted({each.target for each in adapters(read_architecture(model), LORA)})
    pinned = json.dumps({"lora_name": "judge", "lora_path": str(judge), "pinned": True})
    arguments = ARGUMENTS | SERVER | {"lora_target_modules": targets, "lora_paths": [pinned]}
    server = SglangServer(tiny_setup(tmp_path_factory.mktemp("server"), model, arguments=arguments))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def client(server: SglangServer) -> AsyncIterator[EngineClient]:
    async with EngineClient(server.url, 120, 60, api_key="sesame") as client:
        yield client


def request(name: str, samples: int, tokens: int) -> GenerateRequest:
    return GenerateRequest(name, PROMPT, tuple(range(samples)), Sampling(tokens))


def difference(model: Path, merged: dict[str, torch.Tensor], generation: Generation) -> float:
    """The largest difference between a sample's log-probs and those of a merged model by transformers."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    network.load_state_dict(merged, strict=False)
    expected = log_probs_of(network, np.concatenate([PROMPT, generation.tokens]), len(PROMPT))
    return float(np.abs(expected - generation.log_probs).max())


async def test_three_versions_run_at_once_and_share_no_cache(
    client: EngineClient, trainer: Trainer, model: Path
) -> None:
    running, merged = {}, {}
    for version in (1, 2, 3):
        assert await client.update_weights(trainer.write(version)) == version
        merged[version] = trainer.merged()
        running[version] = asyncio.create_task(client.generate(request(f"long-{version}", 6, 300)))
        await asyncio.sleep(0)
    served = {each["id"] for each in (await client.get("/v1/models"))["data"]}
    assert {"policy-v1", "policy-v2", "policy-v3"} <= served
    for version, task in running.items():
        generations = await task
        assert min(generation.cached_tokens for generation in generations) == 0  # others have the prompt
        for generation in generations:
            assert [span.version for span in generation.versions] == [version]
            assert difference(model, merged[version], generation) < 5e-5
    [again] = await client.generate(request("again", 1, 24))
    assert again.cached_tokens == len(PROMPT) - 1
    assert difference(model, merged[3], again) < 2e-5
    await asyncio.gather(*client._adapters._unloads.values())  # versions that nothing uses
    served = {each["id"] for each in (await client.get("/v1/models"))["data"]}
    assert "policy-v3" in served
    assert not {"policy-v1", "policy-v2"} & served


async def test_scores_are_those_of_the_current_version(
    client: EngineClient, trainer: Trainer, model: Path
) -> None:
    scores = {}
    for version in (4, 5):
        await client.update_weights(trainer.write(version))
        [scores[version]] = await client.score([PROMPT])
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        network.load_state_dict(trainer.merged(), strict=False)
        assert np.abs(scores[version] - log_probs_of(network, PROMPT, 1)).max() < 2e-5
    assert np.abs(scores[4] - scores[5]).max() > 0.1


async def test_an_adapter_of_the_start_stays_beside_the_policys_versions(
    client: EngineClient, trainer: Trainer, model: Path, judge: Path
) -> None:
    """The judge or teacher of a job: pinned, scored and asked by its name."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with MergedFolder(model, read_architecture(model), judge) as merged:
        network.load_state_dict({name: merged.read(name) for name in merged.adapted}, strict=False)
    expected = log_probs_of(network, PROMPT, 1)
    teacher = ServedModel(EnginePool([client]), "judge")
    zeros = np.zeros(len(PROMPT) - 4, np.float32)
    for version in range(20, 20 + ROOM + 1):
        await client.update_weights(trainer.write(version))
        [scores] = await client.score([PROMPT], adapter="judge")
        assert np.abs(scores - expected).max() < 1e-4
        assert np.abs((await client.score([PROMPT]))[0] - expected).max() > 0.1
    [of_response] = await teacher.log_probs([TrainSequence(PROMPT, 4, zeros, zeros, zeros, "0")])
    assert np.abs(of_response - expected[3:]).max() < 1e-4
    body = {"messages": [{"role": "user", "content": "4 + 5"}], "max_tokens": 12, "temperature": 0}
    path = "/v1/chat/completions"
    answers = {
        name: json.loads(await client._post(path, body | {"model": name, "logprobs": True}))
        for name in ("default", "default:judge")
    }
    first, second = (answer["choices"][0]["logprobs"]["content"] for answer in answers.values())
    assert [each["logprob"] for each in first] != [each["logprob"] for each in second]
    with pytest.raises(EngineError, match="nobody"):
        await client._post(path, body | {"model": "default:nobody"})


async def test_adapters_in_a_folder_are_loaded_too(client: EngineClient, model: Path, tmp_path: Path) -> None:
    """Servers on other nodes read them there; a server that sleeps has them before it generates again."""
    trainer = Trainer(model, tmp_path / "weights", weight_sync="disk")
    for version in (30, 31):
        if version == 31:
            await client.release_memory(["weights", "kv_cache"])
            await client.resume_memory(["weights"])
        assert await client.update_weights(trainer.write(version)) == version
        if version == 31:
            await client.resume_memory(["kv_cache"])
        [generation] = await client.generate(request(f"folder-{version}", 1, 24))
        assert [span.version for span in generation.versions] == [version]
        assert difference(model, trainer.merged(), generation) < 2e-5
    trainer.writer.close()


async def test_a_server_with_another_model_is_refused(client: EngineClient, trainer: Trainer) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    trainer.base[name] = trainer.base[name] + 1
    message = f"other bytes than were sent for {name}.*not the one whose adapters"
    with pytest.raises(EngineError, match=message):
        await client.update_weights(trainer.write(6))


async def test_a_server_whose_requests_do_not_name_their_adapters_is_noticed(
    client: EngineClient, trainer: Trainer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen model answers all requests, as in verl's issue 7495."""

    class Policy:
        data_ranks = (0,)

        async def log_probs(self, sequences: list[TrainSequence], steps: object) -> list[np.ndarray]:
            network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
            network.load_state_dict(trainer.merged(), strict=False)
            return [log_probs_of(network, one.tokens, one.prompt_length) for one in sequences]

    async def score(tokens: np.ndarray, images: tuple[object, ...] = ()) -> dict[str, np.ndarray]:
        return {client.name: (await client.score([tokens]))[0]}

    zeros = np.zeros(len(PROMPT) - 4, np.float32)
    probes = [SyncProbe(Policy(), score, precision="float32") for _ in range(2)]  # type: ignore[arg-type]
    for probe, ignores in zip(probes, (False, True), strict=True):
        probe.choose([TrainSequence(PROMPT, 4, zeros, zeros, zeros, "0")])
        if ignores:
            monkeypatch.setattr(wire, "_adapters", lambda version: {})
        for version in (7, 8):
            await client.update_weights(trainer.write(version + 2 * ignores))
            await probe.score_with_trainer()
            if ignores and version == 8:
                with pytest.raises(JobError, match="confirmed weights 8, and does not generate with them"):
                    await probe.check(version)
            else:
                await probe.check(version)
