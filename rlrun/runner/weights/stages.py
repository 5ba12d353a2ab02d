"""This rank's pipeline, as the carriers of the weights see it.

Where every rank needs the tensors of all stages, a bucket goes from its stage to the others in slices, so
that every network card of a node carries its share:

    node of stage 0     rank 0 ──slice 0──▶ rank 8  ┐
                        rank 1 ──slice 1──▶ rank 9  ├ node of stage 1: all slices to all ranks, over NVLink
                        …                           ┘
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
