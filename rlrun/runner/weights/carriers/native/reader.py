"""A native engine reads segments of shared memory: whole models in place, and adapters that it merges.

whole model    on a CPU and in the engine's dtype: computed with in place, under the segment's shared lock
               else copied, to a GPU from memory that is registered with CUDA
adapters       merged into a copy of the frozen model (merging.py)
"""

import math
from collections.abc import Mapping
from typing import Any

from rlrun.runner.contracts.weight_updates import TensorSlot
from rlrun.runner.host.segment_files import belongs_to_job
from rlrun.runner.weights.carriers.native.merging import FrozenModel, MergedModel
from rlrun.runner.weights.carriers.native.pinned_segments import PinnedSegments
from rlrun.runner.weights.carriers.native.shared_memory import AttachedWeights, attach
from rlrun.runner.weights.carriers.native.updates import LOAD_FORMAT, SegmentAdapters, WeightManifest
from rlrun.runner.weights.carriers.reader import NewWeights, Reader, ReadingEngine, parse_version
from rlrun.runner.weights.tensor_slots import DTYPES, check_shapes


class SegmentReader(Reader):
    """Reads segments of the job that started the engine."""

    load_format = LOAD_FORMAT

    def __init__(self, engine: ReadingEngine) -> None:
        super().__init__(engine)
        self._pinned = PinnedSegments()
        self._frozen = FrozenModel(engine.shapes)

    def read(self, body: Mapping[str, Any]) -> NewWeights:
        """Returns the model in the segment `manifest`; with `base`, that segment's model with the adapters of
        `manifest`, whose products are multiplied by `scale`.
        """
        manifest = own_manifest(body.get("manifest"), self.engine)
        if "base" not in body:
            return SegmentModel(manifest, self.engine, self._pinned)
        base = own_manifest(body["base"], self.engine)
        return MergedModel(SegmentAdapters(manifest, base, parse_scale(body.get("scale"))), self._frozen)

    def close(self) -> None:
        """Lets go of the frozen model and of registered segments."""
        self._frozen.close()
        self._pinned.close()


class SegmentModel(NewWeights):
    """A whole model in a segment, which is locked from `open` to `close`."""

    def __init__(self, manifest: WeightManifest, engine: ReadingEngine, pinned: PinnedSegments) -> None:
        super().__init__(manifest.version)
        self._manifest, self._engine, self._pinned = manifest, engine, pinned
        self._attached: AttachedWeights | None = None

    def open(self, held: int | None) -> None:
        """Compares the shapes, and maps the segment."""
        check_shapes(self._manifest.shapes, self._engine.shapes, self._manifest.segment)
        self._attached = attach(self._manifest)
        is_copied_by_gpu = self._engine.device.type == "cuda"
        self.tensors = self._pinned.tensors(self._attached) if is_copied_by_gpu else self._attached.tensors

    def close(self) -> None:
        """Lets the trainer write into the segment."""
        super().close()
        if self._attached is not None:
            self._attached.close()


def own_manifest(raw: Any, engine: ReadingEngine) -> WeightManifest:
    """Parses a manifest of the job that started the engine; raises ValueError for any other."""
    manifest = parse_manifest(raw)
    if engine.job is None or not belongs_to_job(manifest.segment, engine.job):
        raise ValueError(f"{manifest.segment!r} is not a segment of the job that started this engine")
    return manifest


def parse_manifest(raw: Any) -> WeightManifest:
    """Parses the `manifest` of a weight update; raises ValueError if it is invalid."""
    try:
        tensors = tuple(
            TensorSlot(str(t["name"]), t["dtype"], tuple(map(int, t["shape"])), int(t["offset"]))
            for t in raw["tensors"]
        )
        manifest = WeightManifest(
            str(raw["segment"]), int(raw["size"]), parse_version(raw["version"]), tensors
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"manifest: {error!r}; it needs segment, size, version and tensors") from None
    for slot in tensors:
        if not isinstance(slot.dtype, str) or slot.dtype not in DTYPES or min(slot.shape, default=0) < 0:
            raise ValueError(
                f"manifest: {slot.name} has an unsupported dtype or shape: {slot.dtype}, {slot.shape}"
            )
    if not 0 < manifest.size < 2**63:
        raise ValueError(f"manifest: a segment cannot have {manifest.size} bytes")
    return manifest


def parse_scale(raw: Any) -> float:
    """Returns the factor of adapters' products; raises ValueError for anything but a finite number."""
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        raise ValueError(f"scale {raw!r} is not a finite number")
    return float(raw)
