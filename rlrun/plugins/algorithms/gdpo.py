"""GDPO: group reward-decoupled normalisation policy optimisation (https://arxiv.org/abs/2601.05242)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import (
    STD_EPSILON,
    centre_rewards,
    comparable_rewards,
    is_compared,
    number_executions,
    spread_over_tokens,
)
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.objective import ClipParams
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlrun.plugins.algorithms.advantages import Scores
else:
    from rlrun.plugins import lazy_numpy as np


class GDPOParams(ClipParams):
    """The parameters of the clipped loss."""


class GDPO(ClippedGroup):
    """Normalises each reward within its group before the rewards are added, so that a reward with large
    differences does not hide the others.

    `rewards.weight` multiplies the normalised reward. The sums are normalised over the step.
    """

    Params = GDPOParams
    params: GDPOParams
    advantage_formula = (
        "Σ weight · (each reward − its group mean) / (its group std + 1e-6), normalised over the step"
    )

    def scores_of(self, group: Group) -> Scores:
        """Returns the weighted sum of the rewards of a group, each normalised by itself."""
        samples = [sample for sample in group.samples if is_compared(sample)]
        total, executions = comparable_rewards(group)
        if not any(sample.rewards for sample in samples):
            return centre_rewards(total, True, executions)
        sums = np.zeros_like(total)
        for name in samples[0].rewards:
            values = np.array([sample.rewards[name] for sample in samples], dtype=np.float64)
            sums += samples[0].reward_weights.get(name, 1.0) * centre_rewards(values, True, executions)
        return sums

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns the sums divided by their deviation over the samples of the step, on every token."""
        scores = [self.scores_of(group) for group in groups]
        shares = [self._shares(group) for group in groups]
        values, weights = np.concatenate([np.zeros(0), *scores]), np.concatenate([np.zeros(0), *shares])
        mean = (weights * values).sum() / max(weights.sum(), 1.0)
        deviation = np.sqrt((weights * (values - mean) ** 2).sum() / max(weights.sum() - 1, 1.0))
        spread = [
            array
            for group, own in zip(groups, scores, strict=True)
            for array in spread_over_tokens(group, (own - mean) / (deviation + STD_EPSILON))
        ]
        return shape_advantages(self.params, groups, spread)

    def _shares(self, group: Group) -> Scores:
        """Returns the weight of each compared sample: the samples of one execution count once, together."""
        numbers = number_executions([sample for sample in group.samples if is_compared(sample)])
        shares: Scores = 1.0 / np.bincount(numbers)[numbers] if len(numbers) else np.zeros(0)
        return shares
