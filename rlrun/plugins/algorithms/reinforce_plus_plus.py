"""REINFORCE++: discounted returns, whitened over the whole step (https://arxiv.org/abs/2501.03262)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rlrun.plugins.algorithms.adaptive_entropy import FollowsEntropy
from rlrun.plugins.algorithms.advantages import discounted_sums, token_rewards
from rlrun.plugins.algorithms.objective import PenalisedParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import kl_penalty, shape_advantages, trained_mask
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class ReinforcePlusPlusParams(PenalisedParams):
    """The clipped loss's parameters, and the discount."""

    normalize_advantages: Literal[True] = True
    """Scale advantages to zero mean and unit variance over all trained tokens of the step. It is part of the
    algorithm and cannot be switched off."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount for each trained token between a token and the end of the response."""


class ReinforcePlusPlus(FollowsEntropy):
    """Computes a token's advantage as its discounted return, whitened over the step; needs neither groups nor
    critic.
    """

    Params = ReinforcePlusPlusParams
    params: ReinforcePlusPlusParams
    api_version = 1
    advantage_formula = "discounted return, whitened over the step"
    loss_formula = "as `grpo`"

    def __init__(self, params: ReinforcePlusPlusParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=False)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns whitened returns. Raises ValueError when no token of the step is trained."""
        returns = [self._returns(sample) for group in groups for sample in group.samples]
        return shape_advantages(self.params, groups, returns)

    def _returns(self, sample: Sample) -> NDArray[np.float64]:
        """Returns discounted sums of the rewards, each given on its turn's last trained token, and of the
        penalties of trained tokens.

        The step from one trained token to the next is discounted once, however long a tool's answer between
        them is.
        """
        mask = trained_mask(sample)
        rewards = token_rewards(sample, mask) - kl_penalty(self.params.kl, sample) * mask
        returns = discounted_sums(rewards, self.params.gamma)
        trained_positions = np.flatnonzero(mask)
        returns[trained_positions] = discounted_sums(rewards[trained_positions], self.params.gamma)
        return returns

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
