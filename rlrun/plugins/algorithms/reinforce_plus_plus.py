"""REINFORCE++: discounted returns, whitened over the whole step (https://arxiv.org/abs/2501.03262)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rlrun.plugins.algorithms.advantages import discounted_sums, reward_at_end
from rlrun.plugins.algorithms.objective import PenalisedParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import penalty, shaped, trained
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class ReinforcePlusPlusParams(PenalisedParams):
    """The clipped loss's parameters, and how far a reward reaches back."""

    normalize_advantages: Literal[True] = True
    """Zero mean and unit variance over all trained tokens of the step: part of the algorithm."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount for each trained token between a token and the end of the response."""


class ReinforcePlusPlus:
    """Neither group nor critic: a token's advantage is its discounted return against the whole step."""

    Params = ReinforcePlusPlusParams
    api_version = 1

    def __init__(self, params: ReinforcePlusPlusParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=False)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Whitened returns; ValueError when no token of the step is trained."""
        returns = [self._returns(sample) for group in groups for sample in group.samples]
        return shaped(self.params, groups, returns)

    def _returns(self, sample: Sample) -> NDArray[np.float64]:
        """Discounted sums of the reward, on the last trained token, and of the penalties of trained ones.

        From one trained token to the next is one discount, however long a tool's answer between them is.
        """
        mask = trained(sample)
        rewards = reward_at_end(sample.reward, mask) - penalty(self.params.kl, sample) * mask
        returns = discounted_sums(rewards, self.params.gamma)
        places = np.flatnonzero(mask)
        returns[places] = discounted_sums(rewards[places], self.params.gamma)
        return returns

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of each token's ratio."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
