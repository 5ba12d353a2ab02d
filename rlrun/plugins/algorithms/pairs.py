"""The base of algorithms that train on pairs of a preferred and a rejected response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlrun.plugins.algorithms.advantages import zero_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class PairLoss:
    """Uses neither rollouts nor rewards. A subclass adds `Params`, `needs` and `loss`."""

    api_version = 1
    advantage_formula = "none: rows contain a preferred and a rejected response"

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns zeros, because the loss compares the pairs."""
        return zero_advantages(groups)


def of_pairs(values: Any) -> tuple[Any, Any]:
    """Returns the preferred responses' and the rejected responses' values of `[B]`, each `[B / 2]`."""
    pairs = values.reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def token_means(inputs: LossInputs, values: Any) -> Any:
    """Returns `[B]` the mean of `[T]` values over the trained tokens of each sample."""
    return inputs.sample_sum(values * inputs.mask) / inputs.sample_sum(inputs.mask).clamp(min=1)


def negative_log_sigmoid(values: Any) -> Any:
    """Returns -log sigmoid of a tensor, without overflow."""
    return values.new_zeros(values.shape).logaddexp(-values)


def pair_outputs(inputs: LossInputs, loss: Any, metrics: Mapping[str, Any]) -> LossOutputs:
    """Returns a loss and metrics of pairs `[B / 2]` on each of a pair's tokens, as the reduction expects."""
    pair = inputs.sample // 2
    return LossOutputs(loss[pair], {name: values.detach()[pair] for name, values in metrics.items()})
