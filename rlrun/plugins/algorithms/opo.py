"""OPO: on-policy RL with the optimal reward baseline (https://arxiv.org/abs/2505.23585)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import comparable_rewards, is_compared
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.objective import ClipParams
from rlrun.plugins.types import Group

if TYPE_CHECKING:
    import numpy as np

    from rlrun.plugins.algorithms.advantages import Scores
else:
    from rlrun.plugins import lazy_numpy as np


class OPOParams(ClipParams):
    """The parameters of the clipped loss."""


class OPO(ClippedGroup):
    """Subtracts the mean reward of the group weighted by length, which minimises the gradient's variance if
    the gradient of a sample grows with its length.
    """

    Params = OPOParams
    params: OPOParams
    advantage_formula = "r − Σ length · r / Σ length over the group, length in trained tokens"

    def scores_of(self, group: Group) -> Scores:
        """Returns reward - mean reward weighted by the number of trained tokens."""
        rewards, _ = comparable_rewards(group)
        lengths = np.array([sample.loss_mask.sum() for sample in group.samples if is_compared(sample)])
        baseline = (lengths * rewards).sum() / max(lengths.sum(), 1.0) if len(rewards) else 0.0
        advantages: Scores = rewards - baseline
        return advantages
