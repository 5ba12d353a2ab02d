"""Sends buckets from the pipeline stage that has their tensors to the ranks of all stages.

Buckets come in rounds of one bucket per stage. Every stage gathers its own bucket at the same time as all
others. Then slices of all buckets cross the network, each over the network card of one rank, and the ranks
of a node put the slices of one bucket together while those of the next are under way:

    round n   all stages      gather their own bucket
              network         slices of bucket 0 │ slices of bucket 1 │ slices of bucket 2 │ …
              in each node                         bucket 0 complete  │ bucket 1 complete  │ …
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist

from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.rank_weights import Stages
from rlrun.runner.weights.server_checksums import ChecksumRecorder


class RelayedWeightSet(WeightSet):
    """The tensors of one update, for a rank that needs those of every pipeline stage.

    Every stage gathers the bucket that it has in a round before the first bucket of the round is relayed.
    """

    def __init__(
        self,
        tensors: Iterator[tuple[str, torch.Tensor]],
        form: Form,
        recorder: ChecksumRecorder | None,
        *,
        buckets: Sequence[Bucket],
        stages: Stages,
        device: torch.device,
    ) -> None:
        """`tensors`: those of this rank's stage. `buckets`: those of all stages. `device`: that of the
        buffers.
        """
        super().__init__(tensors, form, recorder)
        self._rounds = split_into_rounds(buckets)
        self._current: deque[Bucket] = deque()
        """The buckets of the current round that were not relayed yet."""
        self._stages = stages
        self._device = device
        self._relay = Relay(stages, max(bucket.size for bucket in buckets), device)

    def skip(self, bucket: Bucket) -> None:
        """Takes part in gathering the bucket and in sending it to other stages, without keeping it."""
        size = self._stages.padded(bucket.size)
        self._gather_into(torch.empty(size, dtype=torch.uint8, device=self._device), bucket)

    def _gather_into(self, buffer: torch.Tensor, bucket: Bucket) -> None:
        try:
            if not self._current:
                self._begin_round()
        finally:  # after a failure too: the other stages wait for the bucket, and learn of it from the driver
            assert self._current.popleft() is bucket, "buckets are taken in the order of the plan"
            self._relay.receive(buffer, bucket.size, bucket.stage)

    def _begin_round(self) -> None:
        """Gathers this stage's bucket of the next round, and begins to send slices of all its buckets."""
        self._current.extend(next(self._rounds))
        try:
            for bucket in self._current:
                if bucket.stage == self._stages.own:
                    super()._gather_into(self._relay.own, bucket)
        finally:
            self._relay.begin((bucket.stage, bucket.size) for bucket in self._current)


def split_into_rounds(buckets: Sequence[Bucket]) -> Iterator[list[Bucket]]:
    """Yields the rounds of `plan_stage_buckets`: in each the stages' numbers rise."""
    current: list[Bucket] = []
    for bucket in buckets:
        if current and bucket.stage <= current[-1].stage:
            yield current
            current = []
        current.append(bucket)
    yield current


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
