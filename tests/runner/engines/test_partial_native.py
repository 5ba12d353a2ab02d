"""Partial rollouts on the native engine: cut, updated by shared memory, gone on with."""

from functools import partial
from pathlib import Path

from partial_case import check_a_sample_goes_on_by_new_weights
from safetensors.torch import load_file
from tiny_models import make_tiny_model

from rlrun.runner.engines.client import EngineClient
from rlrun.runner.engines.native.server import NativeServer
from rlrun.runner.engines.setup import EngineSetup
from rlrun.runner.weights.shared_memory import SharedWeights


async def test_a_sample_goes_on_by_new_weights(tmp_path: Path) -> None:
    first, second = (make_tiny_model(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    weights = load_file(second / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    shared = SharedWeights(f"test-{tmp_path.name}", shapes, "float32")
    server = NativeServer(EngineSetup(str(first), dtype="float32", max_running=8, threads=1, job="test"))
    try:
        async with EngineClient(server.start()) as client:
            update = partial(client.update_weights, shared.write(weights.items(), 4))
            await check_a_sample_goes_on_by_new_weights(
                client, (first, second), update, length=160, atol=1e-4
            )
    finally:
        server.stop()
        shared.close()
