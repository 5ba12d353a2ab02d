"""A trainer rank's side of adapters in shared memory."""

import torch

from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights
from rlrun.runner.weights.carriers.native.updates import SegmentAdapters, WeightManifest
from rlrun.runner.weights.rank_weights import RankAdapters, on_first_rank
from rlrun.runner.weights.writer import Writer


class SegmentAdapterWriter(Writer):
    """Writes the frozen model and its adapters.

    A native engine merges as the trainer would (rlrun.converters.families.merged_weights.merge_factors), from
    the trainer's own copy of the frozen model, so that it holds the same numbers as if the trainer had sent
    merged weights.
    """

    def __init__(self, source: RankAdapters) -> None:
        """Nothing is gathered or allocated before the first write."""
        self._source = source
        self._adapters = SharedWeights(source.job, source.shapes, "float32", device=source.device)
        self._base = SharedWeights(source.job, source.base_shapes, source.base_dtype, segments=1)
        self._base_manifest: WeightManifest | None = None
        self._has_base = False

    def write(self, version: int) -> SegmentAdapters | None:
        """Writes the factors, and the first time also the frozen model; see Writer."""
        source = self._source
        if not self._has_base:
            self._base_manifest = on_first_rank(
                source.rank, source.gather_base(None), lambda tensors: self._base.write(tensors, version)
            )
            self._has_base = True
        factors = source.gather(torch.float32)
        manifest = on_first_rank(source.rank, factors, lambda tensors: self._adapters.write(tensors, version))
        if manifest is None or self._base_manifest is None:
            return None
        return SegmentAdapters(manifest, self._base_manifest, source.lora.scale)

    def close(self) -> None:
        """Removes the segments."""
        self._adapters.close()
        self._base.close()
