"""Buckets from a pipeline of 2 stages × FSDP 2: every reader gets the bytes that a folder of weights has."""

import asyncio
import base64
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlrun.runner.batches.model_handle import ModelHandle
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.weight_updates import Readers, StreamedWeights
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved
from tests.runner.trainer.trainer_cases import make_sequences, make_spec, plan
from tests.sglang_cpu.trainer_ranks import PipedRank, trainer_ranks
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE

LAYOUT = {"pipeline": 2, "fsdp": 2}
DATA_RANKS = [0, 1, 0, 1]
READERS = Readers((0,), (0,), 2)
"""One server of two processes, on the GPUs of the first stage's ranks: the second stage only sends."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", vocab=4160)


@pytest.fixture(scope="module")
def ranks(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PipedRank]]:
    with trainer_ranks(make_spec(model, LAYOUT, lr=1e-3), model, tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks


async def use(ranks: list[PipedRank], model: Path, gpus: int, **engine: object) -> Spec:
    """Makes the ranks hand weights over as these keys of `[engine]` say."""
    section = {
        "type": "sglang",
        "tensor": 2,
        "count": 1,
        "weight_check": "none",
        "weight_bucket": 1,
        **engine,
    }
    document = make_spec(model, LAYOUT, lr=1e-3).model_dump()
    spec = resolved(document | {"engine": section, "cluster": {"gpus_per_node": gpus}})
    await asyncio.gather(*(rank.call("use", spec.model_dump_json(), deadline=PATIENCE) for rank in ranks))
    return spec


async def stored(trainer: TrainerGroup, version: int) -> dict[str, torch.Tensor]:
    update = await trainer.write_weights(version)
    assert isinstance(update, FolderWeights)
    return read_folder(Path(update.folder))


def read_folder(folder: Path) -> dict[str, torch.Tensor]:
    files = folder.glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


async def streamed(trainer: TrainerGroup, version: int) -> list[dict[str, torch.Tensor]]:
    """The tensors that each process of the server finds."""
    found: list[dict[str, torch.Tensor]] = [{}, {}]
    async with trainer.hand_over(version, READERS) as [stream]:
        while (bucket := await stream.next()).tensors:
            for tensors, payload in zip(found, bucket.of_engine(0, 2), strict=True):
                tensors.update(opened(payload))
    return found


def opened(payload: str) -> dict[str, torch.Tensor]:
    held = pickle.loads(base64.b64decode(payload))
    buffer = held["flattened_tensor"]
    return {
        slot.name: buffer[slot.start_idx : slot.end_idx].view(slot.dtype).reshape(slot.shape).clone()
        for slot in held["metadata"]
    }


@pytest.mark.slow
async def test_readers_get_all_stages_from_the_rank_on_their_gpu(ranks: list[PipedRank], model: Path) -> None:
    trainer = TrainerGroup(ranks)
    spec = await use(ranks, model, 0, weight_sync="disk")
    expected = await stored(trainer, 1)
    assert len(expected) == len(set(expected)) > 20
    await use(ranks, model, 4)
    assert isinstance(await trainer.write_weights(2), StreamedWeights)
    awake = await streamed(trainer, 2)
    await trainer.offload()  # an engine that is restarted now gets the weights, too
    asleep = await streamed(trainer, 2)
    await trainer.reload()
    for found in (*awake, *asleep):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    policy = ModelHandle(trainer, "policy", lambda sequences: plan(sequences, spec), DATA_RANKS)
    await policy.train(make_sequences())
    await trainer.write_weights(3)
    trained = (await streamed(trainer, 3))[0]
    changed = {name for name, tensor in expected.items() if not torch.equal(trained[name], tensor)}
    assert len(changed) > 10  # all matrices
