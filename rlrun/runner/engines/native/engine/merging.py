"""Merges adapters into a copy of the frozen model, as the trainer does for engines without adapters.

    segment of the trainer, mapped once:  frozen model ─┐
    segment of one version:               factors ──────┴─▶ merged ─▶ the engine's own memory, in its dtype

To merge costs one small product per matrix at each update, and nothing per token. Adapters that are applied
separately would cost two more products per matrix in every step, whose rows are too few to hide them.
"""

import torch

from rlrun.converters.families.merged_weights import merge_factors
from rlrun.models.adapters import PEFT_PREFIX
from rlrun.models.architecture import Architecture
from rlrun.runner.engines.native.model.layer_weights import Tensors
from rlrun.runner.engines.native.model.weight_folder import check_shapes
from rlrun.runner.weights.carriers.native.shared_memory import AttachedWeights, attach
from rlrun.runner.weights.carriers.native.updates import SegmentAdapters

_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


class AdapterMerger:
    """Holds the frozen model, and merges adapters with it."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self._base: AttachedWeights | None = None

    def merge(self, update: SegmentAdapters, into: Tensors) -> None:
        """Writes the merged model into the tensors of an engine, which have its dtype and are on its device.

        Raises ValueError, and writes nothing, if the segments do not fit the model.
        """
        base = self._attach_base(update)
        attached = attach(update.adapters)
        try:
            downs = {_matrix(name): name for name in attached.tensors if name.endswith(_DOWN)}
            self._check(downs, attached, update.adapters.segment)
            for name, tensor in into.items():
                if name not in downs:
                    tensor.copy_(base.tensors[name])
                    continue
                factors = (downs[name].replace(_DOWN, _UP), downs[name])
                up, down = (_load(attached.tensors[factor], tensor.device) for factor in factors)
                matrix = _load(base.tensors[name], tensor.device)
                tensor.copy_(merge_factors(matrix, up, down, update.scale))
        finally:
            attached.close()

    def close(self) -> None:
        """Lets go of the frozen model."""
        if self._base is not None:
            self._base.close()
        self._base = None

    def _attach_base(self, update: SegmentAdapters) -> AttachedWeights:
        """Maps the frozen model, unless it is mapped. A restarted trainer has another segment."""
        if self._base is None or self._base.segment != update.base.segment:
            shapes = {slot.name: slot.shape for slot in update.base.tensors}
            check_shapes(shapes, self._architecture, update.base.segment)
            base = attach(update.base)
            self.close()
            self._base = base
        return self._base

    def _check(self, downs: dict[str, str], attached: AttachedWeights, segment: str) -> None:
        """Raises ValueError unless the segment has both factors of each adapter, in fitting shapes."""
        assert self._base is not None
        if len(attached.tensors) != 2 * len(downs):
            raise ValueError(f"{segment}: {len(attached.tensors)} tensors are not pairs of factors")
        for matrix, down_name in downs.items():
            up = attached.tensors.get(down_name.replace(_DOWN, _UP))
            weight, down = self._base.tensors.get(matrix), attached.tensors[down_name]
            if weight is None or up is None:
                raise ValueError(f"{segment}: {down_name} has no matrix in the model, or no second factor")
            if (up.shape[0], down.shape[1]) != tuple(weight.shape) or up.shape[1] != down.shape[0]:
                shapes = f"{tuple(up.shape)} and {tuple(down.shape)}"
                raise ValueError(f"{segment}: factors of shapes {shapes} do not fit {matrix}")


def _load(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, torch.float32)


def _matrix(factor: str) -> str:
    """Returns the name of the matrix that a factor belongs to, both by peft's and by Hugging Face's names."""
    return factor.removeprefix(PEFT_PREFIX).removesuffix(_DOWN) + ".weight"
