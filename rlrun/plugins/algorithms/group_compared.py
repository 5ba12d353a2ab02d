"""The base of algorithms that have GRPO's advantages and another loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import Comparison, group_relative
from rlrun.plugins.algorithms.objective import ObjectiveParams, needs_of
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ComparedParams(Comparison, ObjectiveParams):
    """How rewards become advantages, and the shared terms of the loss."""


class GroupCompared:
    """Compares the rewards of a group as GRPO does. A subclass adds `Params` and `loss`."""

    api_version = 1
    advantage_formula = "as `grpo`"

    def __init__(self, params: ComparedParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=params.subtract_mean)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns (reward - group mean) / group std for each sample, the same value on each of its tokens."""
        params = self.params
        differences = group_relative(groups, params.normalize_std, params.subtract_mean)
        return shape_advantages(params, groups, differences)
