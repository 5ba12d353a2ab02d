"""PPO: proximal policy optimisation with a critic (https://arxiv.org/abs/1707.06347, https://arxiv.org/abs/2203.02155)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.algorithms.advantages import reward_at_end
from rlrun.plugins.algorithms.objective import PenalisedParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import penalty, shaped, trained
from rlrun.plugins.algorithms.value_loss import clipped_value_loss, generalised_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample, Status, ValueInputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class PPOParams(PenalisedParams):
    """The clipped loss's parameters, and how advantages and returns come from the critic's values."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount for each trained token between a token and its reward."""
    lambd: float = Field(default=1.0, ge=0, le=1)
    """Weight of the rewards that came (1) against the values expected (0)."""
    bootstrap_truncated: bool = False
    """A truncated sample is worth what the critic expects after its last token; false: nothing more comes."""
    value_clip: float = Field(default=0.2, gt=0)
    """A value counts no further from the one before the update."""


class PPO:
    """Generalised advantages from a critic's values; the critic learns the same, KL-penalised, returns."""

    Params = PPOParams
    api_version = 1

    def __init__(self, params: PPOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=False, critic=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Generalised advantages of the token rewards."""
        found = [self._advantages(sample) for group in groups for sample in group.samples]
        return shaped(self.params, groups, found)

    def returns(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Advantages before they were shaped, and values: what the critic should have said."""
        return [
            (self._advantages(sample) + _values(sample)).astype(np.float32)
            for group in groups
            for sample in group.samples
        ]

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of each token's ratio."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)

    def value_loss(self, inputs: ValueInputs) -> LossOutputs:
        """Squared error of each token's value, clipped like the policy's ratio."""
        loss, clipped = clipped_value_loss(
            inputs.values, inputs.old_values, inputs.returns, self.params.value_clip
        )
        return LossOutputs(loss, {"value_loss": loss.detach(), "value_clip_frac": clipped})

    def _advantages(self, sample: Sample) -> NDArray[np.float64]:
        """The reward comes with the last trained token, the penalty with each.

        Time passes with trained tokens only: the critic is not fitted to its values of a tool's answer. Other
        tokens carry the advantage of the trained one that follows.
        """
        mask = trained(sample)
        places = np.flatnonzero(mask)
        if not len(places):
            return np.zeros(len(mask))
        rewards = (reward_at_end(sample.reward, mask) - penalty(self.params.kl, sample))[places]
        values = _values(sample)[places]
        advantages = generalised_advantages(
            rewards, values, self.params.gamma, self.params.lambd, self._value_after(sample)
        )
        following = np.searchsorted(places, np.arange(len(mask)))
        return np.append(advantages, 0.0)[following]

    def _value_after(self, sample: Sample) -> float:
        """What is expected where a sample ends: nothing, unless only the token budget ended it."""
        if not (self.params.bootstrap_truncated and sample.status is Status.TRUNCATED):
            return 0.0
        assert sample.value_after is not None, "needs.critic"
        return sample.value_after


def _values(sample: Sample) -> NDArray[np.float64]:
    assert sample.values is not None, "needs.critic"
    return sample.values.astype(np.float64)
