"""The policy on one rank, as the writers that hand it to engines see it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from rlrun.models.adapters import LoraShape
from rlrun.models.architecture import Architecture
from rlrun.runner.weights.stages import Stages

Tensors = Iterator[tuple[str, torch.Tensor]]
Gather = Callable[[torch.dtype | None], Tensors]
"""Yields HF tensors in full, by name. Each rank casts its part to the dtype before it is sent; None: not."""
Stored = TypeVar("Stored")


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
