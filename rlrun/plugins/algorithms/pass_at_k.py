"""The gradient of pass@k, where k is the group's size (https://arxiv.org/abs/2503.19595)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import STD_EPSILON, comparable_rewards
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.objective import ClipParams
from rlrun.plugins.types import Group

if TYPE_CHECKING:
    import numpy as np

    from rlrun.plugins.algorithms.advantages import Scores
else:
    from rlrun.plugins import lazy_numpy as np


class PassAtKParams(ClipParams):
    """The clipped loss's parameters, and whether the group's deviation divides."""

    normalize_std: bool = False
    """Divide advantages by the standard deviation of the group's rewards, as verl does."""


class PassAtK(ClippedGroup):
    """Rewards the best sample of a group alone, by how much worse the group would be without it."""

    Params = PassAtKParams
    params: PassAtKParams
    advantage_formula = "best sample: r − second best r of the group; others: 0"

    def scores_of(self, group: Group) -> Scores:
        """Returns max r - max of the others for each sample: more than 0 for a single best one alone."""
        rewards, executions = comparable_rewards(group)
        count = int(executions.max(initial=-1)) + 1
        advantages = np.zeros_like(rewards)
        if count < 2:
            return advantages
        best = np.full(count, -np.inf)
        np.maximum.at(best, executions, rewards)
        second, first = np.sort(best)[-2:]
        advantages[best[executions] == first] = first - second
        if self.params.normalize_std:
            advantages /= best.std(ddof=1) + STD_EPSILON
        return advantages
