"""Native engines on the trainer's host: two segments of shared memory, which engines adopt in turn.

whole model    each update: tensors ─▶ one of two segments ─▶ every engine computes with it in place
adapters       once: the frozen model ─▶ segment, mapped by all engines of the host
               each update: factors ─▶ one of two small segments ─▶ every engine merges them
"""

from typing import TYPE_CHECKING

from rlrun.runner.weights.carriers.carrier import Carrier
from rlrun.runner.weights.carriers.costs import Links, Payload, PlannedUpdate, SyncTime, stored_time
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    from rlrun.runner.weights.carriers.reader import Reader, ReadingEngine
    from rlrun.runner.weights.rank_weights import RankAdapters, RankWeights
    from rlrun.runner.weights.writer import Writer

_WAYS: dict[Payload, str] = {
    "model": "the whole model in host memory",
    "adapters": "adapters through host memory",
}


class SharedMemory(Carrier):
    """Segments of shared memory."""

    def writer(self, spec: Spec, source: "RankWeights") -> "Writer":
        """Writes the model in `engine.dtype`, whatever the config.json: engines use the bytes in place."""
        from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights
        from rlrun.runner.weights.writer import SentModel, StoredWriter

        def segments() -> SharedWeights:
            return SharedWeights(source.job, source.shapes, spec.engine.dtype, device=source.device)

        return StoredWriter(SentModel(spec, source, converted=False), segments)

    def adapter_writer(self, spec: Spec, source: "RankAdapters") -> "Writer":
        """Writes the frozen model once, and the factors of every version."""
        from rlrun.runner.weights.carriers.native.adapter_writer import SegmentAdapterWriter

        del spec
        return SegmentAdapterWriter(source)

    def sync_time(self, spec: Spec, update: PlannedUpdate, links: Links) -> SyncTime:
        """Returns the time of a copy into shared memory."""
        del spec
        return stored_time(update, links, _WAYS, links.host)

    def reader(self, engine: "ReadingEngine") -> "Reader":
        """Reads segments in place."""
        from rlrun.runner.weights.carriers.native.reader import SegmentReader

        return SegmentReader(engine)
