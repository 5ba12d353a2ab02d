"""A policy of one rank without a trainer: weights of a folder, and every way of giving them to servers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.contracts.weight_updates import (
    Readers,
    StreamedWeights,
    WeightBucket,
    WeightStream,
    WeightUpdate,
)
from rlrun.runner.weights.carriers.table import carrier_for
from rlrun.runner.weights.rank_weights import RankWeights, Stages
from tests.resolved_specs import resolved


class LocalPolicy:
    """Weights that become those of another folder when they are written."""

    def __init__(self, model: Path, scratch: Path, **engine: object) -> None:
        """`engine` are keys of `[engine]`; `weight_bucket` is in MiB, and these models are smaller."""
        settings = {"type": "sglang", "dtype": "float32", "weight_check": "all"} | engine
        spec = {"model": {"path": str(model)}, "data": {}, "engine": settings}
        architecture = read_architecture(model)
        self.shapes = {tensor.name: tensor.shape for tensor in hf_tensors(architecture)}
        self.corrupt: str | None = None
        """A tensor that is sent with another first element."""
        self._weights: Mapping[str, torch.Tensor] = {}
        job = resolved(spec)
        self.writer = carrier_for(job).writer(
            job,
            RankWeights(
                rank=0,
                model=architecture,
                shapes=self.shapes,
                gather=self._gather,
                gather_stage=self._gather,
                stages=Stages(dict.fromkeys(self.shapes, 0)),
                device=torch.device("cpu"),
                host="127.0.0.1",
                job="test",
                folder=scratch / "weights",
                model_folder=model,
            ),
        )

    def write(self, model: Path, version: int) -> WeightUpdate:
        """Become the policy of this folder, and write or announce it."""
        return self.write_tensors(load_file(model / "model.safetensors"), version)

    def write_tensors(self, weights: Mapping[str, torch.Tensor], version: int) -> WeightUpdate:
        """Become the policy with these weights, and write or announce it."""
        self._weights = weights
        update = self.writer.write(version)
        assert update is not None
        return replace(update, trainer=self) if isinstance(update, StreamedWeights) else update

    @asynccontextmanager
    async def hand_over(self, version: int, readers: Readers) -> AsyncIterator[list[WeightStream]]:
        """As a trainer does."""
        del version
        member = await asyncio.to_thread(self.writer.begin, readers)
        yield [WeightStream(member.group, self._next, self._abort)]

    async def _next(self) -> WeightBucket:
        bucket = await asyncio.to_thread(self.writer.next_bucket)
        assert bucket is not None
        return bucket

    async def _abort(self, reason: str) -> None:
        self.writer.abort(reason)

    def _gather(self, dtype: torch.dtype | None) -> Iterator[tuple[str, torch.Tensor]]:
        del dtype
        for name in self.shapes:
            tensor = self._weights[name]
            if name == self.corrupt:
                tensor = tensor.clone()
                tensor.view(-1)[0] += 1
            yield name, tensor
