"""RLOO: REINFORCE with a leave-one-out baseline (https://arxiv.org/abs/2402.14740)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import comparable_rewards, leave_one_out, spread_over_tokens
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RLOOParams(ClipParams):
    """The clipped loss's parameters; RLOO adds none."""


class RLOO:
    """Computes a sample's advantage as its reward minus the mean reward of the other samples in its group."""

    Params = RLOOParams
    api_version = 1
    advantage_formula = "r − mean of the other samples in the group"
    loss_formula = "as `grpo`"

    def __init__(self, params: RLOOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns reward - mean of the others for each sample, the same value on each of its tokens."""
        differences = [
            array
            for group in groups
            for array in spread_over_tokens(group, leave_one_out(*comparable_rewards(group)))
        ]
        return shape_advantages(self.params, groups, differences)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
