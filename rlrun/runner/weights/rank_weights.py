"""The policy on one rank, as the writers that hand it to engines see it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from rlrun.models.adapters import LoraShape
from rlrun.models.architecture import Architecture

Tensors = Iterator[tuple[str, torch.Tensor]]
Gather = Callable[[torch.dtype | None], Tensors]
"""Yields HF tensors in full, by name. Each rank casts its part to the dtype before it is sent; None: not."""
Stored = TypeVar("Stored")


@dataclass(frozen=True, slots=True)
class Stages:
    """The pipeline stages that the policy's tensors are on; without a pipeline there is one, stage 0.

    Where every rank needs the tensors of all stages, a bucket goes from its stage to the others in slices, so
    that every network card of a node carries its share:

        node of stage 0     rank 0 ──slice 0──▶ rank 8  ┐
                            rank 1 ──slice 1──▶ rank 9  ├ node of stage 1: all slices to all ranks, by NVLink
                            …                           ┘
    """

    stage_of: Mapping[str, int]
    """Number of the stage that has each HF tensor, by name."""
    own: int = 0
    """Number of this rank's stage."""
    is_first_rank: bool = True
    """Whether this rank is the first of its stage, which sends where one rank per stage does."""
    group: dist.ProcessGroup | None = None
    """The ranks of this rank's pipeline, one per stage; None without a pipeline."""
    neighbours: dist.ProcessGroup | None = None
    """Ranks of this stage on this node, in the order of the ranks; None: slices are not used."""

    def padded(self, size: int) -> int:
        """Returns the size of a buffer for a bucket of `size` bytes: a multiple of the number of slices."""
        count = self.num_slices
        return -(-size // count) * count

    @property
    def num_slices(self) -> int:
        """Number of slices in which a bucket crosses the network, each sent by another rank of a node."""
        return 1 if self.neighbours is None else dist.get_world_size(self.neighbours)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankTensors:
    """What a rank sends at each update, and the places that it is written to."""

    rank: int
    model: Architecture
    shapes: dict[str, tuple[int, ...]]
    """Shape of every tensor that is sent, by its name in the files of Hugging Face or peft."""
    gather: Gather
    """Yields every tensor in full on rank 0. It is collective: all ranks must run through it together."""
    device: torch.device
    job: str
    """Name of the job; part of the names of its shared-memory segments."""
    folder: Path
    """Folder of the disk carrier, on a disk that engines see too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights(_RankTensors):
    """The whole policy on one rank."""

    gather_stage: Gather
    """Yields the tensors of this rank's pipeline stage in full on all ranks of the stage, which must run
    through it together."""
    stages: Stages
    host: str
    """Address at which other processes reach this rank."""
    model_folder: Path
    """Hugging Face folder that engines start from."""
    engine_process: int | None = None
    """Number of the engine process on this rank's GPU, counted over the processes of all engines; None where
    there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAdapters(_RankTensors):
    """The policy's adapters on one rank, and the frozen model."""

    lora: LoraShape
    base_shapes: dict[str, tuple[int, ...]]
    """Shape of every tensor of the frozen model, by Hugging Face name."""
    base_dtype: str
    """A precision that holds the frozen model without loss."""
    gather_base: Gather
    """Yields every tensor of the frozen model in full on rank 0. It is collective."""


def on_first_rank(rank: int, tensors: Tensors, store: Callable[[Tensors], Stored]) -> Stored | None:
    """Gathers tensors on all ranks; returns what `store` makes of them on rank 0, None on others."""
    if rank == 0:
        return store(tensors)
    for _ in tensors:  # takes part in gathering every tensor
        pass
    return None
