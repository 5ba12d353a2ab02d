"""RLOO: REINFORCE with a leave-one-out baseline (https://arxiv.org/abs/2402.14740)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import compared, leave_one_out, spread
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import shaped
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RLOOParams(ClipParams):
    """RLOO has no parameters beside those of the clipped loss."""


class RLOO:
    """A sample's advantage is its reward minus the mean reward of the group's other samples."""

    Params = RLOOParams
    api_version = 1

    def __init__(self, params: RLOOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """reward - mean of the others, the same on every token of a sample."""
        apart = [array for group in groups for array in spread(group, leave_one_out(*compared(group)))]
        return shaped(self.params, groups, apart)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of each token's ratio."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
