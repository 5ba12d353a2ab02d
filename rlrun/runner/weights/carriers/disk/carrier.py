"""A folder that trainer and engines see, on any node.

whole model         safetensors, one file per bucket
changed elements    the same once, and then what changes from version to version
adapters            the factors in peft's layout, for SGLang servers
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
    "model": "files on a shared disk",
    "elements": "changed elements on a shared disk",
    "adapters": "adapters in files on a shared disk",
}


class Disk(Carrier):
    """A folder."""

    held_models = 1  # the version that engines have, for comparison

    def writer(self, spec: Spec, source: "RankWeights") -> "Writer":
        """Writes the whole model, or what changed."""
        from rlrun.runner.weights.carriers.disk.folder_writer import FolderWriter
        from rlrun.runner.weights.deltas.delta_folder import delta_writer
        from rlrun.runner.weights.writer import SentModel, StoredWriter

        sent = SentModel(spec, source)
        if spec.engine.weight_delta == "elements":
            return delta_writer(sent, source.folder)
        changed_only, buckets = spec.engine.weight_delta == "files", sent.buckets()
        return StoredWriter(
            sent,
            lambda: FolderWriter(source.folder, buckets, changed_only=changed_only, source=source.device),
        )

    def adapter_writer(self, spec: Spec, source: "RankAdapters") -> "Writer":
        """Writes a folder for each version. Native engines read whole models only."""
        from rlrun.runner.weights.carriers.disk.folder_writer import FolderAdapterWriter

        return FolderAdapterWriter(spec, source)

    def sync_time(self, spec: Spec, update: PlannedUpdate, links: Links) -> SyncTime:
        """Returns the time of writing files and reading them."""
        del spec
        return stored_time(update, links, _WAYS, links.disk)

    def reader(self, engine: "ReadingEngine") -> "Reader":
        """Reads folders."""
        from rlrun.runner.weights.carriers.disk.reader import FolderReader

        return FolderReader(engine)
