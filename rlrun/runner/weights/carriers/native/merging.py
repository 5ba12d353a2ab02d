"""Merges adapters into a copy of the frozen model, as the trainer does for engines without adapters.

    segment of the trainer, mapped once:  frozen model ─┐
    segment of one version:               factors ──────┴─▶ merged ─▶ the engine's own memory, in its dtype

To merge costs one small product per matrix at each update, and nothing per token. Adapters that are applied
separately would cost two more products per matrix in every step, whose rows are too few to hide them.
"""

from collections.abc import Mapping

import torch

from rlrun.converters.families.merged_weights import merge_factors
from rlrun.models.adapters import PEFT_PREFIX
from rlrun.runner.weights.carriers.native.shared_memory import AttachedWeights, attach
from rlrun.runner.weights.carriers.native.updates import SegmentAdapters, WeightManifest
from rlrun.runner.weights.carriers.reader import NewWeights
from rlrun.runner.weights.tensor_slots import Shapes, check_shapes

_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


class FrozenModel:
    """The segment of the frozen model, which stays mapped from one update to the next."""

    def __init__(self, shapes: Shapes) -> None:
        """`shapes`: those of all weights of the model."""
        self._shapes = shapes
        self._attached: AttachedWeights | None = None

    def tensors(self, manifest: WeightManifest) -> Mapping[str, torch.Tensor]:
        """Returns the tensors of a segment, which is mapped if it is another than before: that of a trainer
        that was started again.

        Raises ValueError if it does not hold the model.
        """
        if self._attached is None or self._attached.segment != manifest.segment:
            check_shapes(manifest.shapes, self._shapes, manifest.segment)
            attached = attach(manifest)
            self.close()
            self._attached = attached
        return self._attached.tensors

    def close(self) -> None:
        """Lets go of the segment."""
        if self._attached is not None:
            self._attached.close()
        self._attached = None


class MergedModel(NewWeights):
    """The frozen model with the adapters of one version."""

    payload = "adapters"

    def __init__(self, update: SegmentAdapters, frozen: FrozenModel) -> None:
        super().__init__(update.version)
        self._update, self._frozen = update, frozen
        self._base: Mapping[str, torch.Tensor] = {}
        self._adapters: AttachedWeights | None = None

    def open(self, held: int | None) -> None:
        """Maps both segments, and compares the adapters with the matrices that they belong to."""
        self._base = self._frozen.tensors(self._update.base)
        self._adapters = attach(self._update.adapters)
        factors, segment = self._adapters.tensors, self._update.adapters.segment
        downs = _downs(factors)
        if len(factors) != 2 * len(downs):
            raise ValueError(f"{segment}: {len(factors)} tensors are not pairs of factors")
        for matrix, name in downs.items():
            weight, down, up = self._base.get(matrix), factors[name], factors.get(name.replace(_DOWN, _UP))
            if weight is None or up is None:
                raise ValueError(f"{segment}: {name} has no matrix in the model, or no second factor")
            product = (*up.shape[:1], *down.shape[1:])
            if up.ndim != 2 or product != tuple(weight.shape) or up.shape[1] != down.shape[0]:
                shapes = f"{tuple(up.shape)} and {tuple(down.shape)}"
                raise ValueError(f"{segment}: factors of shapes {shapes} do not fit {matrix}")

    def write(self, into: Mapping[str, torch.Tensor]) -> None:
        """Merges the adapters into tensors of any dtype and device."""
        assert self._adapters is not None, "`open` comes first"
        factors = self._adapters.tensors
        downs = _downs(factors)
        for name, tensor in into.items():
            if name not in downs:
                tensor.copy_(self._base[name])
                continue
            pair = (factors[downs[name].replace(_DOWN, _UP)], factors[downs[name]], self._base[name])
            up, down, matrix = (part.to(tensor.device, torch.float32) for part in pair)
            tensor.copy_(merge_factors(matrix, up, down, self._update.scale))

    def close(self) -> None:
        """Lets the trainer write into the adapters' segment."""
        if self._adapters is not None:
            self._adapters.close()


def _downs(factors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Returns the name of each adapter's first factor, by its matrix' Hugging Face name."""
    names = [name for name in factors if name.endswith(_DOWN)]
    return {name.removeprefix(PEFT_PREFIX).removesuffix(_DOWN) + ".weight": name for name in names}
