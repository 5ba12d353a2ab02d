"""Native engines apply deltas from a folder: every byte is right, and what does not fit is refused."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.weight_updates import Recipient
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.weights.buckets import WeightSet, plan_buckets
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from rlrun.runner.weights.deltas.delta_folder import DeltaFolderWriter
from rlrun.runner.weights.form import Form
from tests.runner.weights.deltas.adam_steps import adam_step
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE

FORM = Form(torch.bfloat16)
REQUEST = GenerateRequest("r", np.arange(5, 25, dtype=np.int32), (1, 2), Sampling(16, stop_token_ids=(1,)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", pad_token_id=None)


class Policy:
    """Weights that change a little with each version, and what writes them."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._shapes = {tensor.name: tensor.shape for tensor in hf_tensors(read_architecture(model))}
        self._folder = folder
        self.weights: Mapping[str, torch.Tensor] = load_file(model / "model.safetensors")
        self.restart()

    def restart(self) -> None:
        """Forget which versions engines have."""
        self._writer = DeltaFolderWriter(self._folder, plan_buckets(self._shapes, FORM, 1 << 16))

    def write(self, version: int, lr: float = 1e-5) -> FolderWeights:
        self.weights = adam_step(self.weights, lr, seed=version)
        tensors = ((name, self.weights[name]) for name in self._shapes)
        return self._writer.write(WeightSet(tensors, FORM), version)

    def is_held_by(self, server: NativeServer) -> bool:
        """Whether every byte of the engine's weights is that of the policy's in bfloat16."""
        assert server._engine is not None
        held = server._engine._plain_tensors
        sent = {name: self.weights[name].bfloat16() for name in held}
        return len(held) > 0 and all(
            torch.equal(tensor.view(torch.int16), sent[name].view(torch.int16))
            for name, tensor in held.items()
        )


@contextmanager
def serving(model: Path, folder: Path) -> Iterator[tuple[NativeServer, str]]:
    setup = EngineSetup(str(model), dtype="bfloat16", max_running=8, max_length=256, threads=1)
    server = NativeServer(replace(setup, weight_folders=(str(folder),)))
    yield server, server.start()
    server.stop()


async def test_every_byte_is_right_after_many_deltas_a_missed_update_and_a_restart(
    model: Path, tmp_path: Path
) -> None:
    policy = Policy(model, tmp_path / "weights")
    with serving(model, tmp_path) as (first, url), serving(model, tmp_path) as (second, other_url):
        async with EngineClient(url, control_timeout=PATIENCE) as client:
            pool, server, sizes = EnginePool([client]), first, []
            for version in range(1, 51):
                update = policy.write(version)
                sizes.append(update.size)
                if version == 20:
                    continue  # this update never reaches the engine
                if version == 30:  # another process in its place, without any of the weights
                    server = second
                    await pool.readmit(0, EngineClient(other_url, control_timeout=PATIENCE))
                assert await pool.update_weights(update) == version
                assert policy.is_held_by(server)
            generations = await pool.generate(REQUEST)
            policy.restart()
            await pool.update_weights(policy.write(51, lr=0.0))  # everything
            for by_deltas, by_everything in zip(generations, await pool.generate(REQUEST), strict=True):
                np.testing.assert_array_equal(by_deltas.log_probs, by_everything.log_probs)
            await pool.close()
    assert sizes[0] > 4 * max(sizes[1:20])


async def test_a_delta_for_another_version_is_refused_and_the_weights_stay(
    model: Path, tmp_path: Path
) -> None:
    policy = Policy(model, tmp_path / "weights")
    with serving(model, tmp_path) as (server, url):
        async with EngineClient(url, control_timeout=PATIENCE) as client:
            only_delta = replace(policy.write(1), folder=None, full_version=1)
            with pytest.raises(EngineError, match="there is nothing to load"):
                await client.update_weights(only_delta)
            policy.write(2)
            third = policy.write(3)
            with pytest.raises(EngineError, match="applies to weights 2, and this engine has none"):
                await client.update_weights(third.for_engine(Recipient(0, 1, 2)))
            assert await client.update_weights(third.for_engine(Recipient(0, 1, None))) == 3
            policy.write(4)
            with pytest.raises(EngineError, match="applies to weights 4, and this engine has version 3"):
                await client.update_weights(policy.write(5).for_engine(Recipient(0, 1, 4)))
            assert await client.update_weights(policy.write(6).for_engine(Recipient(0, 1, 3))) == 6
            assert policy.is_held_by(server)
            assert await client.update_weights(FolderWeights(str(model), 0, 7)) == 7
            policy.write(7)
            with pytest.raises(EngineError, match="applies to weights 7, and this engine has none"):
                await client.update_weights(policy.write(8).for_engine(Recipient(0, 1, 7)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:100]), "new weights could not be read"),
        (lambda file: file.unlink(), "new weights could not be read"),
    ],
    ids=["cut off", "missing"],
)
async def test_an_engine_that_cannot_read_a_delta_waits_for_everything(
    model: Path, tmp_path: Path, damage, message: str
) -> None:
    policy = Policy(model, tmp_path / "weights")
    with serving(model, tmp_path) as (server, url):
        async with EngineClient(url, control_timeout=PATIENCE) as client:
            await client.update_weights(policy.write(1))
            update = policy.write(2)
            damage(Path(update.deltas[0].files[-1]))
            with pytest.raises(EngineError, match=message):
                await client.update_weights(update.for_engine(Recipient(0, 1, 1)))
            policy.restart()
            assert await client.update_weights(policy.write(3)) == 3
            assert policy.is_held_by(server)
