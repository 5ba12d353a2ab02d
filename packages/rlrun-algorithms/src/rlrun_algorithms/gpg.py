"""GPG: group policy gradient (https://arxiv.org/abs/2504.02546)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.algorithms.advantages import comparable_rewards, group_relative
from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs


class GPGParams(ComparedParams):
    """How rewards become advantages, and the shared terms of the loss."""

    normalize_std: bool = False
    """Divide advantages by the standard deviation of the group's rewards. The paper calls the divisor F_norm;
    it is 1 in the paper's best runs."""
    turn_rewards: Literal["episode"] = "episode"
    """A turn is credited with the sample's reward, which alpha compares, too."""


class GPG(GroupCompared):
    """Trains with the plain policy gradient, without a ratio, and makes up for groups of equal rewards."""

    Params = GPGParams
    params: GPGParams
    advantage_formula = "α·(r − group mean), where α = samples / samples in groups of different rewards"
    loss_formula = '−A·new; set `trainer.reduction = "per_token"`'

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns alpha · (reward - group mean) for each sample, the same value on each of its tokens."""
        params, alpha = self.params, gradient_scale(groups)
        differences = group_relative(
            groups,
            params.normalize_std,
            params.subtract_mean,
            divisor=params.std_divisor,
            epsilon=params.std_epsilon,
        )
        return shape_advantages(params, groups, [alpha * array for array in differences])

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -advantage · log-prob."""
        zeros = inputs.mask.new_zeros(inputs.mask.shape)
        return objective(self.params, inputs, -inputs.advantages * inputs.log_probs, zeros)


def gradient_scale(groups: Sequence[Group]) -> float:
    """Returns B / (B - M), for M of the step's B samples in groups whose rewards are all equal; 1 if all are.

    Such a group has no gradient, but counts in the loss's denominator. Samples that are not compared do not
    count.
    """
    rewards = [comparable_rewards(group)[0] for group in groups]
    total = sum(len(own) for own in rewards)
    differing = sum(len(own) for own in rewards if len(own) and np.ptp(own) > 0)
    return total / differing if differing else 1.0
