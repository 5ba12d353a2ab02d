"""The native engine over HTTP: the protocol, control calls, weights, errors."""

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest, RequestOptions, Sampling
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.engines.native.model import native_ops
from rlrun.runner.engines.process.server_process import ask_health
from rlrun.runner.weights.carriers.disk.folder_tensors import FolderTensors
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights
from rlrun.runner.weights.carriers.reader import NewWeights
from tests.runner.engines.engine_cases import random_prompts
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE, until

PROMPT = random_prompts(1, shortest=9)[0]


@pytest.fixture
async def client(server: Any) -> AsyncIterator[EngineClient]:
    """A client of the running engine; whatever a test left is ended."""
    async with EngineClient(
        server.url, generate_timeout=PATIENCE, control_timeout=PATIENCE, own=True
    ) as client:
        yield client
        await client.abort_all()
        await client.resume()


async def test_health_is_asked_past_a_proxy(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await asyncio.to_thread(ask_health, server.url, 60.0)


def request(seeds: tuple[int, ...] = (1,), name: str = "r", **sampling: Any) -> GenerateRequest:
    fields = {"max_new_tokens": 12} | sampling
    return GenerateRequest(name, np.array(PROMPT, np.int32), seeds, Sampling(**fields))


def long_request(name: str = "long") -> GenerateRequest:
    """Runs for thousands of steps."""
    return request((1, 2), name, max_new_tokens=8000, min_new_tokens=8000)


def running(server: NativeServer) -> int:
    assert server._engine is not None
    return server._engine._scheduler.running


async def post(client: EngineClient, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(client.url + path, json=body) as response:
        return response.status, await response.json()


async def test_answers_have_the_shape_of_the_protocol(client: EngineClient) -> None:
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 5, "temperature": 0.8, "sampling_seed": 3, "ignore_eos": True},
        "return_logprob": True,
        "rid": "abc",
    }
    status, answer = await post(client, "/generate", body)
    assert status == 200
    assert set(answer) == {"output_ids", "meta_info"}
    meta = answer["meta_info"]
    assert meta["id"] == "abc"
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (len(PROMPT), 5, 0)
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[t, None] for t in answer["output_ids"]]
    assert isinstance(meta["weight_version"], str)
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 5}]


async def test_lists_and_n(client: EngineClient) -> None:
    params = {"max_new_tokens": 3, "n": 2, "sampling_seed": 8, "ignore_eos": True}
    _, pair = await post(client, "/generate", {"input_ids": PROMPT, "sampling_params": params, "rid": "x"})
    assert [answer["meta_info"]["id"] for answer in pair] == ["x-0", "x-1"]
    assert [answer["meta_info"]["cached_tokens"] for answer in pair] == [0, len(PROMPT)]
    assert "output_token_logprobs" not in pair[0]["meta_info"]
    singles = [{"max_new_tokens": 3, "sampling_seed": seed, "ignore_eos": True} for seed in (8, 9)]
    body = {"input_ids": [PROMPT, PROMPT], "sampling_params": singles, "rid": ["a", "b"]}
    _, listed = await post(client, "/generate", body)
    assert [answer["output_ids"] for answer in listed] == [answer["output_ids"] for answer in pair]
    _, seedless = await post(
        client, "/generate", {"input_ids": [PROMPT] * 3, "sampling_params": {"max_new_tokens": 9}}
    )
    assert len({tuple(answer["output_ids"]) for answer in seedless}) == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": []}, "input_ids must be a list"),
        ({"input_ids": ["a"]}, "whole numbers"),
        ({"input_ids": [5, 320]}, "must lie in \[0, 320\)"),
        ({"input_ids": [5], "text": "hi"}, "unknown text"),
        ({"input_ids": [5], "stream": True}, "stream"),
        ({"input_ids": [5], "sampling_params": {"top_p": 0}}, "top_p is 0; it must be above 0"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": -1}}, "at least 0"),
        ({"input_ids": [5], "sampling_params": {"presence": 1}}, "unknown presence; supported are max_new"),
        ({"input_ids": [[5]], "sampling_params": [{}, {}]}, "a list of 1"),
        ({"input_ids": [5] * 8000, "sampling_params": {"max_new_tokens": 300}}, "make 8300; .* at most 8192"),
    ],
)
async def test_what_cannot_run_is_refused_with_the_reason(
    client: EngineClient, body: dict[str, Any], message: str
) -> None:
    status, answer = await post(client, "/generate", body)
    assert status == 400
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(answer["error"]["message"])


async def test_a_batch_is_the_same_each_time(client: EngineClient) -> None:
    requests = [
        GenerateRequest(str(i), np.array(prompt, np.int32), (i, i + 100, i + 200), Sampling(30 + i))
        for i, prompt in enumerate(random_prompts(7))
    ]
    once = await client.generate_batch(requests)
    for _ in range(2):
        again = await client.generate_batch(requests)
        for ours, theirs in zip(again, once, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a.tokens, b.tokens)
                np.testing.assert_array_equal(a.log_probs, b.log_probs)
    alone = await client.generate(requests[3])
    assert [g.tokens.tolist() for g in alone] == [g.tokens.tolist() for g in once[3]]


async def test_abort_answers_with_the_partial_output(client: EngineClient, server: Any) -> None:
    task = asyncio.create_task(client.generate(long_request("gone")))
    other = asyncio.create_task(client.generate(long_request("stays")))
    await until(lambda: running(server) == 4, "both requests running")
    status, answer = await post(client, "/abort_request", {"rid": "gone-1"})
    assert (status, answer) == (200, {"aborted": 1})
    await until(lambda: running(server) == 3, "one sample less")
    await post(client, "/abort_request", {"rid": "gone"})
    generations = await task
    assert [generation.finish for generation in generations] == ["abort", "abort"]
    for generation in generations:
        assert 0 < len(generation.tokens) == len(generation.log_probs) < 8000
        assert generation.versions == (
            VersionSpan(generation.versions[0].version, 0, len(generation.tokens)),
        )
    assert not other.done()
    await client.abort_all()
    assert [generation.finish for generation in await other] == ["abort", "abort"]


async def test_a_client_that_goes_away_is_not_generated_for(client: EngineClient, server: Any) -> None:
    task = asyncio.create_task(client.generate(long_request()))
    await until(lambda: running(server) == 2, "the request running")
    task.cancel()
    await until(lambda: running(server) == 0, "the request's end")


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_pausing_changes_nothing(client: EngineClient, server: Any, mode: Any) -> None:
    wanted = request((5, 6), max_new_tokens=600, min_new_tokens=600)
    undisturbed = await client.generate(wanted)
    task = asyncio.create_task(client.generate(wanted))
    await until(lambda: running(server) > 0, "the request running")
    for _ in range(3):
        await client.pause(mode)
        assert await client.health()
        if mode == "retract":
            await client.flush_cache()
        else:
            with pytest.raises(EngineError, match=r"400: samples are running"):
                await client.flush_cache()
        await client.resume()
    for ours, theirs in zip(await task, undisturbed, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-4)
    await client.flush_cache()


async def test_pause_by_abort_ends_what_runs_and_holds_what_comes(client: EngineClient, server: Any) -> None:
    task = asyncio.create_task(client.generate(long_request()))
    await until(lambda: running(server) == 2, "the request running")
    await client.pause("abort")
    assert [generation.finish for generation in await task] == ["abort", "abort"]
    later = asyncio.create_task(client.generate(request()))
    await client.health()
    assert not later.done()
    await client.resume()
    assert len(await later) == 1


async def test_weights_change_in_the_middle_of_a_sample(
    client: EngineClient, server: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    first = load_file(tiny_folder / "model.safetensors")
    other_folder = make_tiny_model(tmp_path / "other", seed=5, max_position_embeddings=8192)
    other = load_file(other_folder / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in first.items()}
    shared = SharedWeights(f"test-{tmp_path.name}", shapes, "float32")
    try:
        assert await client.update_weights(shared.write(first.items(), 10)) == 10
        task = asyncio.create_task(client.generate(long_request()))
        await until(lambda: running(server) == 2, "the request running")
        assert await client.update_weights(shared.write(other.items(), 11)) == 11
        await client.abort_all()
        for generation in await task:
            assert [span.version for span in generation.versions] == [10, 11]
            assert generation.versions[0].end == generation.versions[1].start > 0
            assert generation.versions[1].end == len(generation.tokens)
        after = (await client.generate(request(min_new_tokens=12)))[0]
    finally:
        shared.close()
    assert after.versions == (VersionSpan(11, 0, 12),)
    fresh = NativeServer(EngineSetup(str(other_folder), dtype="float32"))
    async with EngineClient(fresh.start()) as reference:
        expected = (await reference.generate(request(min_new_tokens=12)))[0]
    fresh.stop()
    np.testing.assert_array_equal(after.tokens, expected.tokens)
    np.testing.assert_array_equal(after.log_probs, expected.log_probs)
    assert await client.update_weights(FolderWeights(str(tiny_folder), 0, 12)) == 12


async def test_weights_that_do_not_fit_leave_the_old_ones(
    client: EngineClient, tiny_folder: Path, tmp_path: Path
) -> None:
    before = await client.model_info()
    wanted = request(min_new_tokens=12)
    expected = (await client.generate(wanted))[0]
    smaller = make_tiny_model(tmp_path / "smaller", intermediate_size=64)
    with pytest.raises(
        EngineError, match=r"400: .*gate_proj.weight has shape \(64, 64\), the model needs \(96, 64\)"
    ):
        await client.update_weights(FolderWeights(str(smaller), 0, 99))
    with pytest.raises(EngineError, match=r"has no \*.safetensors file"):
        await client.update_weights(FolderWeights(str(tmp_path), 0, 99))
    await client.resume()
    shared = SharedWeights(f"test-{tmp_path.name}", {"model.norm.weight": (64,)}, "float32")
    manifest = shared.write([("model.norm.weight", torch.ones(64))], 99)
    with pytest.raises(
        EngineError, match=r"400: .* weights are missing, the first is model.embed_tokens.weight"
    ):
        await client.update_weights(manifest)
    shared.close()
    status, answer = await post(client, "/update_weights_from_tensor", {"serialized_named_tensors": ["x"]})
    assert (status, "does not unpickle" in answer["error"]["message"]) == (400, True)
    after = (await client.generate(wanted))[0]
    assert (await client.model_info())["weight_version"] == before["weight_version"]
    np.testing.assert_array_equal(after.log_probs, expected.log_probs)


async def test_a_bfloat16_engine_takes_float32_weights(tiny_folder: Path, tmp_path: Path) -> None:
    weights = load_file(tiny_folder / "model.safetensors")
    shared = SharedWeights(f"test-{tmp_path.name}", {name: t.shape for name, t in weights.items()}, "float32")
    engine = NativeServer(EngineSetup(str(tiny_folder), dtype="bfloat16", threads=1, job="test"))
    async with EngineClient(engine.start()) as client:
        before = (await client.generate(request(min_new_tokens=12)))[0]
        for version in (1, 2, 3):
            assert await client.update_weights(shared.write(weights.items(), version)) == version
        after = (await client.generate(request(min_new_tokens=12)))[0]
    engine.stop()
    shared.close()
    np.testing.assert_array_equal(after.log_probs, before.log_probs)


@pytest.fixture
async def unpacked(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """An engine whose weights stay as they were read, as on a GPU, and its client."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(native_ops, "packs", lambda dtype: False)
    setup = EngineSetup(str(tiny_folder), dtype="float32", threads=1, max_length=256)
    server = NativeServer(replace(setup, weight_folders=(str(tmp_path),)))
    async with EngineClient(server.start()) as client:
        yield server, client
    server.stop()


async def test_a_folder_is_read_into_the_memory_of_the_old_weights(
    unpacked: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    server, client = unpacked
    [before] = await client.generate(request(min_new_tokens=12))
    memory = server._engine._scheduler.model.weights.embedding.data_ptr()
    doubled = tiny_folder_of(tiny_folder, tmp_path, lambda tensor: tensor * 2)
    for version, folder in ((1, doubled), (2, tiny_folder)):
        assert await client.update_weights(FolderWeights(str(folder), 0, version)) == version
        assert server._engine._scheduler.model.weights.embedding.data_ptr() == memory
        [after] = await client.generate(request(min_new_tokens=12))
        assert np.array_equal(after.log_probs, before.log_probs) == (folder == tiny_folder)


async def test_an_engine_that_read_half_of_a_folder_generates_only_after_the_next_update(
    unpacked: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = unpacked
    [before] = await client.generate(request(min_new_tokens=12))

    def read_half(opened: FolderTensors, into: dict[str, torch.Tensor]) -> None:
        next(iter(into.values())).zero_()
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(FolderTensors, "read", read_half)
        with pytest.raises(EngineError, match="the disk is gone"):
            await client.update_weights(FolderWeights(str(tiny_folder), 0, 1))
    await client.resume()
    with pytest.raises(EngineError, match="has released weights"):
        await client.generate(request())
    assert await client.update_weights(FolderWeights(str(tiny_folder), 0, 2)) == 2
    [after] = await client.generate(request(min_new_tokens=12))
    np.testing.assert_array_equal(after.log_probs, before.log_probs)


def tiny_folder_of(source: Path, folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """Writes a copy of a model folder with changed weights."""
    copy = folder / "changed"
    shutil.copytree(source, copy)
    tensors = load_file(source / "model.safetensors")
    save_file({name: change(tensor) for name, tensor in tensors.items()}, copy / "model.safetensors")
    return copy


def test_a_port_in_use_is_named(server: Any, tiny_folder: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ValueError, match=rf"cannot listen on port {port} of 127.0.0.1: .* Set engine.port"):
        NativeServer(EngineSetup(str(tiny_folder), port=port)).start()


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ({"model_folder": "/nowhere"}, "it has no config.json"),
        ({"max_length": 9000}, "max_length 9000 exceeds the 8192 positions"),
        ({"max_cache_tokens": 10**12}, "max_cache_tokens 1000000000000 needs .* GB; at most"),
    ],
)
def test_a_setup_that_cannot_work_says_why(tiny_folder: Path, setup: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativeServer(EngineSetup(**({"model_folder": str(tiny_folder)} | setup))).start()


class NoWeights(NewWeights):
    """Weights that only note that they are closed."""

    payload = "adapters"
    closed = False

    def open(self, held: int | None) -> None:
        raise ValueError("nothing to read")

    def close(self) -> None:
        self.closed = True


async def test_a_cancelled_call_is_dropped_and_the_engine_goes_on(client: EngineClient, server: Any) -> None:
    engine, free, new = server._engine, threading.Event(), NoWeights(3)
    busy = engine._thread.call(free.wait)
    cancelled = [engine.load(new), engine.resume()]
    assert all(future.cancel() for future in cancelled)
    free.set()
    await asyncio.wrap_future(busy)
    assert await asyncio.wrap_future(engine.abort(lambda sample: False)) == 0
    assert new.closed


async def test_an_update_whose_client_has_gone_holds_up_the_next(
    client: EngineClient, server: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, free, entered = server._engine, threading.Event(), []

    def load(new: Any) -> Future[None]:
        entered.append(new.version)
        free.wait(PATIENCE)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    monkeypatch.setattr(engine, "load", load)
    path, body = "/update_weights_from_disk", {"model_path": str(tiny_folder), "weight_version": "1"}
    gone = asyncio.create_task(post(client, path, body))
    await until(lambda: entered == [1], "the first update")
    gone.cancel()
    second = asyncio.create_task(post(client, path, body | {"weight_version": "2"}))
    async with aiohttp.ClientSession() as session:
        for _ in range(50):  # the server sees that the connection is closed, and gets the second request
            async with session.get(client.url + "/health") as response:
                assert response.status == 200
    assert entered == [1]
    free.set()
    assert (await second)[0] == 200
    assert entered == [1, 2]


async def test_an_engine_that_stops_answers_its_last_calls(tiny_folder: Path) -> None:
    server = NativeServer(EngineSetup(str(tiny_folder), dtype="float32", threads=1))
    async with EngineClient(server.start(), own=True) as client:
        call = asyncio.create_task(client.generate(long_request()))
        await until(lambda: running(server) == 2, "the start of the samples")
        await asyncio.to_thread(server.stop)
        assert [sample.finish for sample in await call] == ["abort", "abort"]


@pytest.mark.parametrize("own", [True, False], ids=["channel", "a request each"])
async def test_an_engine_that_fails_says_so(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    server = NativeServer(EngineSetup(str(tiny_folder), dtype="float32"))
    async with EngineClient(server.start(), own=own) as client:
        assert server._engine is not None

        def fail() -> None:
            raise RuntimeError("the processor is on fire")

        monkeypatch.setattr(server._engine._scheduler, "step", fail)
        for _ in range(2):
            with pytest.raises(
                EngineError, match=r"500: the engine failed: RuntimeError: the processor is on fire"
            ):
                await client.generate(request())
        assert not await client.health()
    server.stop()


async def test_log_probs_of_given_tokens_are_those_they_were_drawn_with(client: EngineClient) -> None:
    samples = await client.generate(request((1, 2, 3), max_new_tokens=40))
    whole = [np.concatenate([PROMPT, sample.tokens]).astype(np.int32) for sample in samples]
    found = await client.score([*whole, np.array([5], np.int32)])
    assert [len(values) for values in found] == [len(PROMPT) + len(one.tokens) - 1 for one in samples] + [0]
    for values, sample in zip(found, samples, strict=False):
        np.testing.assert_allclose(values[len(PROMPT) - 1 :], sample.log_probs, atol=1e-5)


async def test_log_probs_alone_are_asked_for_in_whole(client: EngineClient) -> None:
    status, answer = await post(
        client, "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}
    )
    assert status == 400
    assert "add return_logprob = true and logprob_start_len = 0" in answer["error"]["message"]


async def test_a_chat_is_answered_in_text(client: EngineClient) -> None:
    messages = [{"role": "user", "content": "say 7"}]
    body = {"model": "any", "messages": messages, "max_tokens": 5, "temperature": 0.0}
    status, answer = await post(client, "/v1/chat/completions", body)
    assert status == 200
    [choice] = answer["choices"]
    assert choice["finish_reason"] in ("stop", "length")
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert answer["usage"]["completion_tokens"] <= 5
    status, answer = await post(client, "/v1/chat/completions", {"messages": messages, "tools": []})
    assert status == 400
    assert "unknown tools" in answer["error"]["message"]


async def test_an_engine_gives_its_memory_away_and_takes_it_back(tiny_folder: Path) -> None:
    setup = EngineSetup(str(tiny_folder), dtype="float32", max_running=8, max_length=256, threads=1)
    server = NativeServer(setup)
    async with EngineClient(server.start(), control_timeout=PATIENCE) as client:
        engine = server._engine
        assert engine is not None
        wanted = request((3,), max_new_tokens=8)
        before = await client.generate(wanted)
        running = asyncio.create_task(client.generate(request((4,), max_new_tokens=40, min_new_tokens=40)))
        await client.abort_until_idle()
        await running
        await client.release_memory(["weights", "kv_cache"])
        model = engine._scheduler.model
        held = (model.cache.keys, model.weights.head, model.weights.layers[0].qkv)
        assert not any(tensor.numel() for tensor in held)
        with pytest.raises(EngineError, match="the engine sleeps and has released kv_cache and weights"):
            await client.generate(wanted)
        await client.resume_memory(["weights"])
        assert await client.update_weights(FolderWeights(str(tiny_folder), 0, 5)) == 5
        await client.resume_memory(["kv_cache"])
        [after] = await client.generate(wanted)
        np.testing.assert_array_equal(after.log_probs, before[0].log_probs)
        assert after.versions == (VersionSpan(5, 0, len(after.tokens)),)
    server.stop()


async def test_a_client_gets_the_masks_it_asks_for(client: EngineClient) -> None:
    plain = request((1, 2), top_p=0.9, top_k=30)
    masked, free = replace(plain, id="m", options=RequestOptions(return_sampling_mask=True)), request()
    (one, two), [whole] = await client.generate_batch([masked, free])
    for made, before in zip((one, two), await client.generate(plain), strict=True):
        assert made.tokens.tolist() == before.tokens.tolist()
        assert made.sampling_mask is not None and before.sampling_mask is None
        assert len(made.sampling_mask) == len(made.tokens)
        assert made.sampling_mask.lengths.max() <= 30
        assert (made.log_probs >= before.log_probs - 1e-6).all()
        assert (made.log_probs > before.log_probs).any()
    assert whole.sampling_mask is None


async def test_a_mask_of_the_whole_vocabulary_is_refused(client: EngineClient) -> None:
    status, answer = await post(client, "/generate", {"input_ids": [5], "return_sampling_mask": True})
    assert status == 400
    assert "return_sampling_mask records the tokens within top_k or top_p" in answer["error"]["message"]
    body = {"input_ids": [5], "return_sampling_mask": [True, False], "sampling_params": {"top_k": 3}}
    assert (await post(client, "/generate", body))[0] == 400


def test_an_engine_imports_neither_transformers_nor_the_compiler_of_torch():
    code = "import sys, rlrun.runner.engines.native.http.server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = loaded.stdout.split()
    assert "torch" in names
    assert not {"transformers", "torch._dynamo", "torch.distributed.tensor"} & set(names)
