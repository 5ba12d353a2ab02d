"""PPO: proximal policy optimisation with a critic (https://arxiv.org/abs/1707.06347,
https://arxiv.org/abs/2203.02155).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rlrun.plugins.algorithms.adaptive_entropy import FollowsEntropy
from rlrun.plugins.algorithms.advantages import discounted_sums, token_rewards
from rlrun.plugins.algorithms.objective import PenalisedParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import kl_penalty, shape_advantages, trained_mask
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample, Status, ValueInputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlrun.plugins.algorithms.advantages import Scores
else:
    from rlrun.plugins import lazy_numpy as np


class PPOParams(PenalisedParams):
    """The clipped loss's parameters, and those that make advantages and returns from the critic's values."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount for each trained token between a token and its reward."""
    lambd: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda: 1 uses only the rewards that followed, 0 only the critic's next value."""
    bootstrap_truncated: bool = False
    """Whether a truncated sample ends with the value that the critic predicts after its last token. False: it
    ends with the value 0."""
    value_clip: float = Field(default=0.2, gt=0)
    """How far a value may move from the value before the update in the loss."""


class PPO(FollowsEntropy):
    """Computes generalised advantages from a critic's values; the critic is fitted to the same penalised
    returns.
    """

    Params = PPOParams
    params: PPOParams
    api_version = 1
    advantage_formula = "generalised advantage estimate, from a critic’s values"
    loss_formula = "as `grpo`"

    def __init__(self, params: PPOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=False, critic=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns generalised advantages of the token rewards."""
        unshaped = [self._advantages(sample) for group in groups for sample in group.samples]
        return shape_advantages(self.params, groups, unshaped)

    def returns(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns the targets of the critic: the advantages before shaping plus the values."""
        return [
            (self._advantages(sample) + _values(sample)).astype(np.float32)
            for group in groups
            for sample in group.samples
        ]

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)

    def value_loss(self, inputs: ValueInputs) -> LossOutputs:
        """Returns the squared error of each token's value, clipped like the policy's ratio."""
        loss, clipped = clipped_value_loss(
            inputs.values, inputs.old_values, inputs.returns, self.params.value_clip
        )
        return LossOutputs(loss, {"value_loss": loss.detach(), "value_clip_frac": clipped})

    def _advantages(self, sample: Sample) -> NDArray[np.float64]:
        """Returns the advantages `[R]` of one sample before shaping.

        Each turn's reward is given on its last trained token, and the KL penalty on each trained token. Only
        trained tokens count as time, because the critic is not fitted to its values of a tool's answer. A
        token that is not trained has the advantage of the trained token that follows.
        """
        mask = trained_mask(sample)
        trained_positions = np.flatnonzero(mask)
        if not len(trained_positions):
            return np.zeros(len(mask))
        rewards = (token_rewards(sample, mask) - kl_penalty(self.params.kl, sample))[trained_positions]
        values = _values(sample)[trained_positions]
        advantages = generalised_advantages(
            rewards, values, self.params.gamma, self.params.lambd, self._value_after(sample)
        )
        following = np.searchsorted(trained_positions, np.arange(len(mask)))
        return np.append(advantages, 0.0)[following]

    def _value_after(self, sample: Sample) -> float:
        """Returns the value after the end of a sample: 0, unless only the token budget ended it and the spec
        bootstraps.
        """
        if not (self.params.bootstrap_truncated and sample.status is Status.TRUNCATED):
            return 0.0
        assert sample.value_after is not None, "needs.critic"
        return sample.value_after


def _values(sample: Sample) -> NDArray[np.float64]:
    assert sample.values is not None, "needs.critic"
    return sample.values.astype(np.float64)


def generalised_advantages(
    rewards: Scores, values: Scores, gamma: float, lambd: float, after: float = 0.0
) -> Scores:
    """Returns the advantages `[R]` of one response (GAE, https://arxiv.org/abs/1506.02438); adding the values
    to them gives the returns.

    They are the sums of d discounted by gamma·lambd, with d[t] = r[t] + gamma·V[t + 1] - V[t]. `after` is the
    value after the last token.
    """
    next_values = np.append(values[1:], after)[: len(values)]
    return discounted_sums(rewards + gamma * next_values - values, gamma * lambd)


def clipped_value_loss(values: Any, old_values: Any, returns: Any, clip: float) -> tuple[Any, Any]:
    """Returns max((v within old ± clip - R)², (v - R)²), and 1 on tokens whose value moved by more than clip.

    All arguments and results are `[T]` tensors.
    """
    moved = values - old_values
    near = old_values + moved.clamp(-clip, clip)
    loss = (values - returns).square().maximum((near - returns).square())
    return loss, (moved.abs() > clip).to(loss.dtype).detach()
