"""SGLang servers on other devices: a process group of one trainer rank per pipeline stage and all servers."""

from typing import TYPE_CHECKING

from rlrun.runner.weights.carriers.carrier import Carrier
from rlrun.runner.weights.carriers.costs import Links, PlannedUpdate, SyncTime
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    from rlrun.runner.weights.rank_weights import RankWeights
    from rlrun.runner.weights.writer import Writer


_GROUP_SECONDS = 120.0
"""Deadline for all processes to join the group, and for each broadcast."""


class Broadcast(Carrier):
    """Process groups."""

    def writer(self, spec: Spec, source: "RankWeights") -> "Writer":
        """Streams the buckets of each stage from the stage's first rank."""
        from rlrun.runner.weights.carriers.broadcast.sender import BroadcastSender
        from rlrun.runner.weights.carriers.broadcast.updates import BroadcastWeights
        from rlrun.runner.weights.streams import StreamWriter
        from rlrun.runner.weights.writer import SentModel

        def sender(largest: int) -> BroadcastSender:
            return BroadcastSender(largest, source.host, source.device, _GROUP_SECONDS)

        sent, leads = SentModel(spec, source), source.stages.is_first_rank
        return StreamWriter(
            sent=sent,
            announce=BroadcastWeights,
            buckets=sent.buckets(by_stage=True),
            gather=source.gather_stage,
            make_sender=sender if leads else None,
            stage=source.stages.own,
            leads=leads,
        )

    def sync_time(self, spec: Spec, update: PlannedUpdate, links: Links) -> SyncTime:
        """Returns the time of a broadcast from every stage, which gather at the same time."""
        stages = spec.trainer.parallel.pipeline
        way = "broadcast" + (f", a process group for each of {stages} stages" if stages > 1 else "")
        gather = links.gather_in_stages(update.size)
        return SyncTime(way, gather, update.size / links.broadcast, overlapped=True)
