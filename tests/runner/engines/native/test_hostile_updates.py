"""Updates that are damaged, or that no trainer sends: refused with a reason, and the old weights stay."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlrun.runner.contracts.channel_frames import CHANNEL_PATH, Frame, FrameWriter, read_frames
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.weights.carriers.disk import reader
from tests.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", pad_token_id=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def url(model: Path, folder: Path) -> Iterator[str]:
    setup = EngineSetup(str(model), dtype="float32", max_running=8, max_length=256, threads=1, job="test")
    server = NativeServer(replace(setup, weight_folders=(str(folder),)))
    yield server.start()
    server.stop()


async def post(url: str, path: str, body: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as answer:
        return answer.status, (await answer.json())["error"]["message"]


async def test_a_call_number_that_is_in_use_closes_its_channel_only(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 200, "min_new_tokens": 200}}'
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(url + CHANNEL_PATH) as socket:
            writer = FrameWriter(socket.send_bytes)
            writer.put(Frame(7, 0, body))
            writer.put(Frame(7, 0, body))
            await writer.flush()
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        async with session.ws_connect(url + CHANNEL_PATH) as socket:
            writer = FrameWriter(socket.send_bytes)
            for _ in range(2):  # a number may be used again after its answer
                writer.put(Frame(7, 0, body))
                await writer.flush()
                [frame] = read_frames((await socket.receive()).data)
                assert (frame.call, frame.status) == (7, 200)
    assert "call 7 a second time, before its answer" in caplog.text


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def damage_dtype(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"dtype":"F32"', b'"dtype":["F"]', 1))


def replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (truncate, "model.safetensors cannot be read: .* the file may be truncated"),
        (damage_dtype, "model.safetensors cannot be read: .* has an unknown type"),
        (replace_by_pipe, "model.safetensors cannot be read: it is a pipe, not a regular file"),
        (lambda file: file.write_bytes(b""), "it does not begin with the length of a header"),
    ],
)
async def test_a_damaged_folder_is_refused_with_the_reason(
    harm: Callable[[Path], object], reason: str, model: Path, folder: Path, url: str
) -> None:
    file = folder / "model.safetensors"
    file.unlink(missing_ok=True)
    file.write_bytes((model / "model.safetensors").read_bytes())
    harm(file)
    status, message = await post(url, "/update_weights_from_disk", {"model_path": str(folder)})
    assert status in (400, 500)
    assert re.search(reason, message), message


def whole(file: Path, model: Path) -> None:
    save_file(load_file(model / "model.safetensors"), file)


def outside(file: Path, model: Path) -> None:
    """A delta whose positions are beyond the end of its tensor."""
    gaps = torch.full((1 << 16,), 255, dtype=torch.uint8)
    gaps[-1] = 1
    parts = {"model.norm.weight|gaps": gaps, "model.norm.weight|steps": torch.ones(1, dtype=torch.int8)}
    values = {"model.norm.weight|values": torch.ones(0, dtype=torch.int32)}
    save_file(parts | values, file, {"changed": '{"model.norm.weight": ["float32", [64]]}'})


def no_steps(file: Path, model: Path) -> None:
    gaps = {"model.norm.weight|gaps": torch.ones(1, dtype=torch.uint8)}
    save_file(gaps, file, {"changed": '{"model.norm.weight": ["float32", [64]]}'})


def another_description(file: Path, model: Path) -> None:
    save_file({"a": torch.ones(1)}, file, {"changed": '{"model.norm.weight": [3]}'})


def cut_off(file: Path, model: Path) -> None:
    outside(file, model)
    truncate(file)


@pytest.mark.parametrize("write", [whole, outside, no_steps, another_description, cut_off])
async def test_a_damaged_delta_is_refused_with_the_reason(
    write: Callable[[Path, Path], None], model: Path, folder: Path, url: str
) -> None:
    file = folder / "delta.safetensors"
    write(file, model)
    deltas = [{"since": 0, "files": [str(file)]}]
    body = {"model_path": str(model), "weight_version": "1", "deltas": deltas}
    status, message = await post(url, "/update_weights_from_disk", body)
    assert (status, "delta.safetensors" in message) == (400, True), message


@pytest.mark.parametrize("dtype", [["float32"], {}, None, 3])
async def test_a_manifest_of_any_dtype_is_refused_with_the_reason(dtype: object, url: str) -> None:
    tensor = {"name": "a", "dtype": dtype, "shape": [1], "offset": 0}
    manifest = {"segment": "rlrun-test-1.1-0", "size": 64, "version": 1, "tensors": [tensor]}
    body = {"load_format": "shared_memory", "manifest": manifest}
    status, message = await post(url, "/update_weights_from_tensor", body)
    assert (status, "unsupported dtype" in message) == (400, True), message


@pytest.mark.parametrize("version", [1.5, True])
async def test_a_version_that_is_no_whole_number_is_refused(version: object, url: str, model: Path) -> None:
    body = {"model_path": str(model), "weight_version": version}
    status, message = await post(url, "/update_weights_from_disk", body)
    assert (status, message) == (400, f"weight_version {version!r} is not a whole number")


async def test_a_bug_is_answered_with_its_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "parse_version", lambda raw: {}["version"])
    status, message = await post(url, "/update_weights_from_disk", {})
    assert (status, message) == (500, "KeyError: 'version'")
