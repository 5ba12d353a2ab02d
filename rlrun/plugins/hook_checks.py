"""What hooks may change: loss masks of samples, downwards, their `info`, and a micro-batch's advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlrun.plugins.types import Group, LossInputs, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class SamplesBefore:
    """The samples of a step before a hook sees them."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._samples = _samples(groups)
        self._states = [_State.of(sample) for sample in self._samples]

    def fault(self) -> str | None:
        """Returns what a hook did to the samples that it must not do; None if nothing."""
        if [*map(id, _samples(self._groups))] != [*map(id, self._samples)]:
            return "it adds or removes samples: a filter does that ([[filters]])"
        for sample, before in zip(self._samples, self._states, strict=True):
            if fault := before.fault(sample):
                return f"sample {sample.id}: {fault}"
        return None


def advantages_fault(advantages: Any, inputs: LossInputs) -> str | None:
    """Returns what is wrong with the advantages that a hook gives a micro-batch; None if nothing is."""
    wanted = list(inputs.advantages.shape)
    if not hasattr(advantages, "isfinite") or list(advantages.shape) != wanted:
        given = repr(advantages)
        if hasattr(advantages, "shape"):
            given = f"{type(advantages).__name__} of the shape {list(advantages.shape)}"
        return f"advantages are a tensor of the shape {wanted}, it returned {given}"
    return None if bool(advantages.isfinite().all()) else "it returned advantages that are not finite"


@dataclass(frozen=True, slots=True)
class _State:
    """One sample: what stays as it is, and the loss mask."""

    fixed: tuple[Any, ...]
    mask: NDArray[np.float32]

    @classmethod
    def of(cls, sample: Sample) -> _State:
        return cls(_fixed(sample), sample.loss_mask.copy())

    def fault(self, sample: Sample) -> str | None:
        arrays = (sample.tokens, sample.log_probs, sample.loss_mask)
        if not all(isinstance(array, np.ndarray) for array in arrays) or arrays[2].dtype != self.mask.dtype:
            return "its arrays stay arrays of the same type: change loss_mask in place, loss_mask[3:] = 0"
        if _fixed(sample) != self.fixed:
            return "only loss_mask and info may change: an algorithm turns rewards into advantages"
        mask = sample.loss_mask
        if mask.shape != self.mask.shape:
            return f"loss_mask has the shape {list(mask.shape)}, the response {list(self.mask.shape)}"
        if not np.all((mask == self.mask) | (mask == 0)):
            return "loss_mask may only go from 1 to 0: what the policy did not write is not trained on"
        return None


def _samples(groups: Sequence[Group]) -> list[Sample]:
    return [sample for group in groups for sample in group.samples]


def _fixed(sample: Sample) -> tuple[Any, ...]:
    """Returns what must be equal before and after; text of floats, because NaN is not equal to itself."""
    numbers = repr((sample.reward, sorted(sample.rewards.items())))
    texts = sample.id, sample.execution_id, sample.status, sample.text, sample.failure
    weights = sample.cross_entropy, sample.policy_weights, sample.kl_weights
    arrays = [None if array is None else np.asarray(array).tobytes() for array in weights]
    return *texts, numbers, sample.tokens.tobytes(), sample.log_probs.tobytes(), *arrays
