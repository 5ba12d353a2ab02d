"""This rank's pipeline, as the carriers of the weights see it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Stages:
    """The pipeline stages that the policy's tensors are on; without a pipeline there is one, stage 0."""

    stage_of: Mapping[str, int]
    """Number of the stage that has each HF tensor, by name."""
    own: int = 0
    """Number of this rank's stage."""
    is_first_rank: bool = True
    """Whether this rank is the first of its stage, which sends where one rank per stage does."""
    group: dist.ProcessGroup | None = None
    """The ranks of this rank's pipeline, one per stage; None without a pipeline."""

    def send(self, buffer: torch.Tensor, stage: int) -> None:
        """Copies the buffer of the rank on `stage` to the other ranks of this pipeline; collective."""
        if self.group is not None:
            dist.broadcast(buffer, group=self.group, group_src=stage)
