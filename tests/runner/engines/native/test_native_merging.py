"""An engine merges the adapters that a trainer sends into the numbers that the trainer would have sent."""

import numpy as np
import pytest
import torch

from rlrun.models.config_json import read_architecture
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.engines.native.model.fused_weights import allocate
from rlrun.runner.weights.carriers.native.merging import FrozenModel, MergedModel
from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights
from rlrun.runner.weights.carriers.native.updates import SegmentAdapters
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), "qwen3", pad_token_id=None)


def check_equal(merged, trainer, dtype):
    expected = dict(trainer.policy.parameters.gather(dtype))
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[name], expected[name].to(dtype)) for name in expected)


@pytest.mark.parametrize("targets", [None, ["q_proj", "down_proj"]])
def test_merged_weights_are_those_of_the_trainer_bit_for_bit(folder, targets):
    trainer = make_rank(folder, make_spec(folder, lora={"rank": 3, "alpha": 5, "targets": targets}))
    architecture = read_architecture(folder)
    frozen = FrozenModel(weight_shapes(architecture))
    engines = {dtype: allocate(architecture, dtype, CPU) for dtype in (torch.float32, torch.bfloat16)}
    for version in range(3):
        update = trainer.write_weights(version)
        assert isinstance(update, SegmentAdapters)
        assert update.version == version
        assert update.size < update.base.size
        for dtype, tensors in engines.items():
            merged = MergedModel(update, frozen)
            merged.open(None)
            merged.write(tensors)
            merged.close()
            check_equal(tensors, trainer, dtype)
        sequences = make_sequences(4)
        trainer.policy.train(sequences, plan(sequences, trainer._spec))
    frozen.close()
    trainer.close()


async def test_an_engine_that_slept_needs_adapters_alone(folder):
    """The frozen model stays in shared memory while the engine's own weights are released."""
    trainer = make_rank(folder, make_spec(folder, lora={"rank": 3, "alpha": 5}))
    sequences = make_sequences(4)
    trainer.policy.train(sequences, plan(sequences, trainer._spec))
    setup = EngineSetup(str(folder), dtype="float32", max_running=8, max_length=256, threads=1, job="run")
    server = NativeServer(setup)
    prompt = np.arange(5, 30, dtype=np.int32)
    async with EngineClient(server.start(), control_timeout=PATIENCE) as client:
        [frozen] = await client.score([prompt])
        scores = []
        for version in (1, 2):
            await client.update_weights(trainer.write_weights(version))
            if version == 2:
                await client.resume_memory(["kv_cache"])
            scores += await client.score([prompt])
            if version == 1:
                await client.release_memory(["weights", "kv_cache"])
                await client.resume_memory(["weights"])
        np.testing.assert_array_equal(scores[0], scores[1])
        assert np.abs(scores[0] - frozen).max() > 1e-5
    server.stop()
    trainer.close()


def test_factors_that_do_not_fit_are_refused(folder):
    architecture = read_architecture(folder)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    frozen = FrozenModel(weight_shapes(architecture))
    trainer = make_rank(folder, make_spec(folder, lora={"rank": 3, "alpha": 5}))
    base = trainer.write_weights(0).base
    for tensors, message in (
        ({f"{name}A.weight": torch.ones(3, 4), f"{name}B.weight": torch.ones(4, 3)}, "do not fit"),
        ({f"{name}A.weight": torch.ones(3), f"{name}B.weight": torch.ones(3)}, "do not fit"),
        ({f"{name}A.weight": torch.ones(3, 4)}, "not pairs of factors"),
        (
            {"x.lora_A.weight": torch.ones(3, 4), "x.lora_B.weight": torch.ones(4, 3)},
            "no matrix in the model",
        ),
    ):
        shapes = {key: tuple(value.shape) for key, value in tensors.items()}
        writer = SharedWeights("test", shapes, "float32")
        update = SegmentAdapters(writer.write(tensors.items(), 1), base, 1.0)
        with pytest.raises(ValueError, match=message):
            MergedModel(update, frozen).open(None)
        writer.close()
    frozen.close()
    trainer.close()
