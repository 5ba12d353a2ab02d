"""What the native engine's server refuses, and from whom, by real HTTP."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from safetensors.torch import load_file

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.bodies import CONTROL_BYTES
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.host.segment_files import FOLDER, belongs_to_job, new_segment_name
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights
from rlrun.runner.weights.carriers.native.updates import WeightManifest

KEY = "sesame"
PATHS = [
    "/generate",
    "/v1/chat/completions",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/flush_cache",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/update_weights_from_tensor",
    "/update_weights_from_disk",
]


@pytest.fixture(scope="module")
def url(tiny_folder: Path) -> Iterator[str]:
    """Returns the address of an engine with a key, whose job is called `mine`."""
    server = NativeServer(
        EngineSetup(str(tiny_folder), dtype="float32", max_running=8, threads=1, api_key=KEY, job="mine")
    )
    yield server.start()
    server.stop()


async def ask(url: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """A POST with a key and JSON unless headers say otherwise."""
    sent = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"} | headers
    raw = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.post(
            url + path, data=raw, headers={k.replace("_", "-"): v for k, v in sent.items()}
        ) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize("path", PATHS)
async def test_every_endpoint_wants_the_key_the_host_and_json(url: str, path: str) -> None:
    assert (await ask(url, path, Authorization=""))[0] == 401
    assert (await ask(url, path, Authorization=f"Bearer {KEY}x"))[0] == 401
    assert (await ask(url, path, Host="evil.example"))[0] == 403
    assert (await ask(url, path, Content_Type="text/plain"))[0] == 415


async def test_health_alone_is_open(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for path, status in (("/health", 200), ("/model_info", 401), ("/get_model_info", 401), ("/x", 401)):
            async with session.get(url + path) as answer:
                assert (path, answer.status) == (path, status)
        async with session.get(f"{url}/health", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403
    async with EngineClient(url, api_key=KEY) as client:
        assert (await client.model_info())["vocab_size"] == 320


SAMPLING = {
    "n of a billion": ({"n": 10**9}, "n is 1000000000; it must be a whole number from 1 to 4096"),
    "n as a float": ({"n": 2.0}, "n is 2.0"),
    "many stops": ({"stop": ["x"] * 129}, "or a list of 128 at most"),
    "a long stop": ({"stop": "x" * 1025}, "a string of at most 1024 characters"),
    "an empty stop": ({"stop": [""]}, "stop is"),
    "a stop that is a number": ({"stop": 5}, "stop is (5,)"),
    "stop tokens as text": ({"stop_token_ids": "abc"}, "stop_token_ids is ('abc',)"),
    "many stop tokens": ({"stop_token_ids": list(range(5000))}, "a list of at most 4096 token ids"),
    "a huge top-k": ({"top_k": 2**63}, "top_k is"),
    "a huge seed": ({"sampling_seed": 2**64}, "sampling_seed is"),
    "a huge budget": ({"max_new_tokens": 2**40}, "max_new_tokens is"),
    "a huge least length": ({"min_new_tokens": 2**63 - 1}, "min_new_tokens is"),
    "a temperature next to 0": ({"temperature": 1e-40}, "temperature is 1e-40"),
    "a temperature beyond float32": ({"temperature": 1e300}, "temperature is 1e+300"),
    "a temperature that is true": ({"temperature": True}, "temperature is True"),
    "ignore_eos as text": ({"ignore_eos": "no"}, "ignore_eos is 'no'"),
    "log-probs of many others": ({"top_logprobs": 10**6}, "unknown top_logprobs"),
}


@pytest.mark.parametrize(("sampling", "why"), SAMPLING.values(), ids=SAMPLING)
async def test_what_asks_for_too_much(url: str, sampling: dict[str, Any], why: str) -> None:
    status, answer = await ask(url, "/generate", {"input_ids": [5], "sampling_params": sampling})
    assert status == 400
    assert why in json.loads(answer)["error"]["message"]


BODIES = {
    "too many samples": (
        {"input_ids": [[5]] * 17, "sampling_params": {"n": 4096}},
        "69632 samples in one call",
    ),
    "a long name": ({"input_ids": [5], "rid": "x" * 257}, "a rid has at most 256 characters"),
    "a key that is not served": ({"input_ids": [5], "lora_path": "/"}, "unknown lora_path"),
    "token ids beyond int32": ({"input_ids": [2**40]}, "input_ids must hold whole numbers"),
    "nested token ids": ({"input_ids": [[[5]]]}, "input_ids must hold whole numbers"),
}


@pytest.mark.parametrize(("body", "why"), BODIES.values(), ids=BODIES)
async def test_bodies_that_cannot_be_served(url: str, body: dict[str, Any], why: str) -> None:
    status, answer = await ask(url, "/generate", body)
    assert status == 400
    assert why in json.loads(answer)["error"]["message"]


async def test_a_long_body_is_refused_packed_or_not(url: str) -> None:
    long = b" " * (CONTROL_BYTES + 1)
    assert (await ask(url, "/pause_generation", long))[0] == 413
    assert (await ask(url, "/pause_generation", gzip.compress(long), Content_Encoding="gzip"))[0] == 413
    assert (await ask(url, "/pause_generation", b"[" * 100_000))[0] == 400


WRONG_CALLS = {
    "tags": ("/release_memory_occupation", {"tags": [["weights"]]}),
    "tags as text": ("/release_memory_occupation", {"tags": "weights"}),
    "a manifest of nothing": ("/update_weights_from_tensor", {"load_format": "shared_memory", "manifest": 5}),
    "a folder as a number": ("/update_weights_from_disk", {"model_path": 5}),
    "no folder": ("/update_weights_from_disk", {"model_path": "a\0b"}),
    "a seed": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "seed": "y"}),
}


@pytest.mark.parametrize(("path", "body"), WRONG_CALLS.values(), ids=WRONG_CALLS)
async def test_wrong_calls_are_the_client_s_error(url: str, path: str, body: dict[str, Any]) -> None:
    assert (await ask(url, path, body))[0] == 400


def manifest(name: str, **slot: Any) -> dict[str, Any]:
    tensor = {"name": "a", "dtype": "float32", "shape": [2], "offset": 64} | slot
    return {
        "load_format": "shared_memory",
        "manifest": {"segment": name, "size": 128, "version": 1, "tensors": [tensor]},
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (manifest("rlrun-other-1.2-3"), "is not a segment of the job that started this engine"),
        (manifest("../../etc/passwd"), "is not a segment of the job"),
        (manifest("rlrun-mine-1.2-3", dtype="pickle"), "a has an unsupported dtype or shape: pickle"),
        (
            manifest("rlrun-mine-1.2-3", shape=[-2, -1]),
            "a has an unsupported dtype or shape: float32, (-2, -1)",
        ),
    ],
)
async def test_weights_of_another_job_are_refused(url: str, body: dict[str, Any], why: str) -> None:
    status, answer = await ask(url, "/update_weights_from_tensor", body)
    assert (status, why in answer) == (400, True), answer


async def test_a_segment_that_others_may_write_is_refused(url: str, tiny_folder: Path) -> None:
    tensors = load_file(tiny_folder / "model.safetensors")
    shared = SharedWeights("mine-1", {name: one.shape for name, one in tensors.items()}, "float32")
    try:
        update = shared.write(tensors.items(), 3)
        path = FOLDER / update.segment
        assert path.stat().st_mode & 0o777 == 0o600
        async with EngineClient(url, api_key=KEY) as client:
            path.chmod(0o602)
            with pytest.raises(EngineError, match="must be a regular file that only this user owns"):
                await client.update_weights(update)
            path.chmod(0o600)
            link = FOLDER / new_segment_name("mine-2")
            link.symlink_to(path)
            try:
                linked = WeightManifest(link.name, update.size, update.version, update.tensors)
                with pytest.raises(EngineError, match="cannot be opened"):
                    await client.update_weights(linked)
            finally:
                link.unlink()
            assert await client.update_weights(update) == 3
    finally:
        shared.close()


@pytest.mark.parametrize(
    ("name", "job", "own"),
    [
        ("rlrun-mine-1.2-3", "mine", True),
        ("rlrun-mine-29500-1.2-3", "mine", True),
        ("rlrun-a_b-29500-1.2-3", "a b", True),
        ("rlrun-mineral-1.2-3", "mine", False),
        ("rlrun-mi-1.2-3", "mine", False),
        ("mine-1.2-3", "mine", False),
        (new_segment_name("x" * 300), "x" * 300, True),
        (new_segment_name("x" * 300 + "-29500"), "x" * 300, True),
    ],
)
def test_whose_segment_it_is(name: str, job: str, own: bool) -> None:
    assert belongs_to_job(name, job) == own


async def test_folders_that_were_not_named_at_the_start_are_refused(
    url: str, tiny_folder: Path, tmp_path: Path
) -> None:
    async with EngineClient(url, api_key=KEY) as client:
        (tmp_path / "link").symlink_to(tiny_folder)
        assert await client.update_weights(FolderWeights(str(tmp_path / "link"), 0, 4)) == 4
        for folder in ("/", "/etc", str(tiny_folder / ".."), str(tmp_path)):
            with pytest.raises(
                EngineError, match="is not below any folder that this engine may read weights from"
            ):
                await client.update_weights(FolderWeights(folder, 0, 5))
        await client.resume()
