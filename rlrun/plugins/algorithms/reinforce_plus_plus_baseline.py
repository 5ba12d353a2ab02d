"""REINFORCE++-baseline: the group's mean is the baseline, and the step's spread is the scale
(https://arxiv.org/abs/2501.03262).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rlrun.plugins.algorithms.adaptive_entropy import FollowsEntropy
from rlrun.plugins.algorithms.advantages import TurnCredit, group_relative
from rlrun.plugins.algorithms.objective import PenalisedParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import kl_penalty, shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class BaselineParams(TurnCredit, PenalisedParams):
    """The clipped loss's parameters, and whether the group's mean is subtracted."""

    subtract_mean: bool = True
    """Subtract the mean reward of the group. False: only the step's mean is subtracted, by the whitening."""
    normalize_advantages: Literal[True] = True
    """Scale advantages to zero mean and unit variance over all trained tokens of the step. It is part of the
    algorithm and cannot be switched off."""


class ReinforcePlusPlusBaseline(FollowsEntropy):
    """Computes reward - group mean, whitened over all tokens of the step instead of divided by the group's
    std.
    """

    Params = BaselineParams
    params: BaselineParams
    api_version = 1
    advantage_formula = "r − group mean, whitened over the step"
    loss_formula = "as `grpo`"

    def __init__(self, params: BaselineParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=params.subtract_mean)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns whitened differences. Raises ValueError when no token of the step is trained."""
        samples = [sample for group in groups for sample in group.samples]
        params = self.params
        differences = group_relative(groups, False, params.subtract_mean, params.turn_rewards)
        penalised = [
            values - kl_penalty(params.kl, sample)
            for sample, values in zip(samples, differences, strict=True)
        ]
        return shape_advantages(params, groups, penalised)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
