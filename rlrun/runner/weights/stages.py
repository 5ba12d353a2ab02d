"""This rank's pipeline, as the carriers of the weights see it.

Where every rank needs the tensors of all stages, a bucket goes from its stage to the others in slices, so
that every network card of a node carries its share:

    node of stage 0     rank 0 ──slice 0──▶ rank 8  ┐
                        rank 1 ──slice 1──▶ rank 9  ├ node of stage 1: all slices to all ranks, over NVLink
                        …                           ┘
"""

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
    neighbours: dist.ProcessGroup | None = None
    """Ranks of this stage on this node, in the order of the ranks; None: slices are not used."""

    def padded(self, size: int) -> int:
        """Returns the size of a buffer for a bucket of `size` bytes: a multiple of the number of slices."""
        count = self._num_slices
        return -(-size // count) * count

    def send(self, buffer: torch.Tensor, size: int, stage: int) -> None:
        """Copies the first `size` bytes from the ranks of `stage` to those of the other stages; collective.

        The buffer has at least `padded(size)` bytes.
        """
        if self.group is None:
            return
        whole = buffer[: self.padded(size)]
        if self.neighbours is None:
            dist.broadcast(whole, group=self.group, group_src=stage)
            return
        own_slice = whole.chunk(self._num_slices)[dist.get_rank(self.neighbours)]
        dist.broadcast(own_slice, group=self.group, group_src=stage)
        if self.own != stage:
            dist.all_gather_single(whole, own_slice.clone(), group=self.neighbours)

    @property
    def _num_slices(self) -> int:
        return 1 if self.neighbours is None else dist.get_world_size(self.neighbours)
