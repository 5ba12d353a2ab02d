"""A real SGLang server that gets only the elements that changed: every byte is compared after each update."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.engines.sglang.setup import SglangSetup, with_delta_loader
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from tests.runner.weights.deltas.adam_steps import adam_step
from tests.sglang_cpu.policies import LocalPolicy
from tests.sglang_cpu.servers import tiny_setup
from tests.tiny_models import make_tiny_model

PROMPT = np.arange(5, 25, dtype=np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", vocab=4160)


@pytest.fixture(scope="module")
def setup(model: Path, tmp_path_factory: pytest.TempPathFactory) -> SglangSetup:
    return with_delta_loader(tiny_setup(tmp_path_factory.mktemp("server"), model, dtype="bfloat16"))


@pytest.fixture(scope="module")
def server(setup: SglangSetup) -> Iterator[SglangServer]:
    server = SglangServer(setup)
    server.start()
    yield server
    server.stop()


def connect(server: SglangServer) -> EngineClient:
    return EngineClient(server.url, 120, 60, api_key="sesame")


def folders_in_memory() -> list[Path]:
    return list(Path("/dev/shm").glob("rlrun-test-*"))


async def send_updates(
    server: SglangServer,
    model: Path,
    folder: Path,
    *,
    way: str,
    updates: int,
    restart_at: int | None = None,
    ranks: int = 1,
) -> list[int]:
    """Sends updates, of which the server misses the fourth, and compares all bytes; returns their sizes."""
    engine = {"weight_sync": way, "weight_delta": "elements", "dtype": "bfloat16", "tensor": ranks}
    policy = LocalPolicy(model, folder, **engine)
    weights: Mapping[str, torch.Tensor] = load_file(model / "model.safetensors")
    pool, sizes = EnginePool([connect(server)]), []
    for version in range(1, updates + 1):
        weights = adam_step(weights, 1e-5, seed=version)
        update = policy.write_tensors(weights, version)
        assert isinstance(update, FolderWeights)
        sizes.append(update.size)
        if version == restart_at:
            server.stop()
            server.start()
            await pool.readmit(0, connect(server))
        if version != 4:
            assert await pool.update_weights(update) == version  # weight_check = "all"
    request = GenerateRequest("r", PROMPT, (1, 2), Sampling(24, stop_token_ids=(1,)))
    spans = [span for one in await pool.generate(request) for span in one.versions]
    assert {span.version for span in spans} == {updates}
    await pool.close()
    policy.writer.close()
    return sizes


@pytest.mark.slow  # as all of this file; tests/runner/weights/deltas has deltas without a server
@pytest.mark.parametrize("way", ["disk", "tensor"])
async def test_every_byte_is_right_after_deltas_of_which_the_server_missed_one(
    server: SglangServer, model: Path, tmp_path: Path, way: str
) -> None:
    sizes = await send_updates(server, model, tmp_path, way=way, updates=6)
    assert max(sizes[1:]) < 0.3 * sizes[0]
    assert not folders_in_memory()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["disk", "tensor"])
async def test_every_byte_is_right_after_many_deltas_and_a_restart(
    setup: SglangSetup, model: Path, tmp_path: Path, way: str
) -> None:
    own = SglangServer(replace(setup, log=tmp_path / "server.log", secrets=tmp_path / "keys.yaml"))
    own.start()
    try:
        await send_updates(own, model, tmp_path, way=way, updates=50, restart_at=30)
    finally:
        own.stop()


@pytest.mark.slow
async def test_ranks_of_a_server_change_their_own_parts(
    setup: SglangSetup, model: Path, tmp_path: Path
) -> None:
    environment = {**setup.environment, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    log, secrets = tmp_path / "server.log", tmp_path / "keys.yaml"
    own = SglangServer(replace(setup, tensor=2, environment=environment, log=log, secrets=secrets))
    own.start()
    try:
        sizes = await send_updates(own, model, tmp_path, way="disk", updates=6, ranks=2)
    finally:
        own.stop()
    assert max(sizes[1:]) < 0.3 * sizes[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_moe"])
async def test_a_server_with_experts_answers_as_with_everything(family: str, tmp_path: Path) -> None:
    """Experts' checksums are not compared, so the answers are: to the bit."""
    model = make_tiny_model(tmp_path / "model", family)
    own = SglangServer(with_delta_loader(tiny_setup(tmp_path, model, dtype="bfloat16")))
    own.start()
    policy = LocalPolicy(model, tmp_path, weight_sync="disk", weight_delta="elements", dtype="bfloat16")
    whole = LocalPolicy(model, tmp_path / "whole", weight_sync="disk", dtype="bfloat16")
    weights: Mapping[str, torch.Tensor] = load_file(model / "model.safetensors")
    greedy = GenerateRequest("r", PROMPT, (1,), Sampling(24, temperature=0.0))
    answers = []
    try:
        pool = EnginePool([connect(own)])
        for version in range(1, 4):
            weights = adam_step(weights, 3e-3, seed=version)
            await pool.update_weights(policy.write_tensors(weights, version))
            answers.append((await pool.generate(greedy))[0].log_probs)
        await pool.update_weights(whole.write_tensors(weights, 4))
        expected = (await pool.generate(greedy))[0].log_probs
        await pool.close()
    finally:
        own.stop()
    np.testing.assert_array_equal(answers[-1], expected)
    assert not np.array_equal(answers[0], expected)


@pytest.mark.slow
async def test_a_damaged_delta_ends_the_server_and_not_the_trainer(
    setup: SglangSetup, model: Path, tmp_path: Path
) -> None:
    own = SglangServer(replace(setup, log=tmp_path / "server.log", secrets=tmp_path / "keys.yaml"))
    own.start()
    try:
        policy = LocalPolicy(model, tmp_path, weight_sync="disk", weight_delta="elements", dtype="bfloat16")
        weights = load_file(model / "model.safetensors")
        pool = EnginePool([connect(own)])
        for version in (1, 2):
            update = policy.write_tensors(adam_step(weights, 1e-5, seed=version), version)
            if version == 2:
                damaged = Path(update.deltas[0].files[0])
                await asyncio.to_thread(damaged.write_bytes, b"")
                with pytest.raises((EngineError, TimeoutError)):
                    await pool.update_weights(update)
            else:
                await pool.update_weights(update)
        await pool.close()
    finally:
        own.stop()
