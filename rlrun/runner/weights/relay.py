"""Sends buckets from the pipeline stage that has their tensors to the ranks of all stages.

Buckets come in rounds of one bucket per stage. Every stage gathers its own bucket at the same time as all
others. Then slices of all buckets cross the network, each over the network card of one rank, and the ranks
of a node put the slices of one bucket together while those of the next are under way:

    round n   all stages      gather their own bucket
              network         slices of bucket 0 │ slices of bucket 1 │ slices of bucket 2 │ …
              in each node                         bucket 0 complete  │ bucket 1 complete  │ …
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from rlrun.runner.weights.stages import Stages


class Relay:
    """One rank's part in sending rounds of buckets between the stages."""

    def __init__(self, stages: Stages, size: int, device: torch.device) -> None:
        """`size`: bytes of the largest bucket."""
        self.own = torch.empty(stages.padded(size), dtype=torch.uint8, device=device)
        """The bucket of this rank's stage in the current round."""
        self._stages = stages
        self._slices: dict[int, tuple[torch.Tensor, dist.Work]] = {}
        """The slices that this rank sends or receives, by stage."""

    def begin(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Begins to send slices of a round's buckets; `sizes`: the stage and the bytes of each; collective.

        `own` must be filled, and must not change until all buckets of the round were received.
        """
        stages = self._stages
        if stages.neighbours is None:
            return
        number = dist.get_rank(stages.neighbours)
        for stage, size in sizes:
            length = stages.padded(size) // stages.num_slices
            if stage == stages.own:
                sent = self.own[number * length : (number + 1) * length]
            else:
                sent = self.own.new_empty(length)
            work = dist.broadcast(sent, group=stages.group, group_src=stage, async_op=True)
            assert work is not None, "every rank is in the group of its pipeline"
            self._slices[stage] = sent, work

    def receive(self, buffer: torch.Tensor, size: int, stage: int) -> None:
        """Copies the bucket of `stage`, of `size` bytes, into a buffer of at least `padded(size)` bytes.

        Collective; the buckets of a round are received in the order of `begin`.
        """
        stages = self._stages
        whole = buffer[: stages.padded(size)]
        if stage == stages.own:
            whole.copy_(self.own[: len(whole)])
        if stages.neighbours is None:
            dist.broadcast(whole, group=stages.group, group_src=stage)
            return
        own_slice, work = self._slices.pop(stage)
        work.wait()
        if stage != stages.own:
            dist.all_gather_single(whole, own_slice, group=stages.neighbours)
