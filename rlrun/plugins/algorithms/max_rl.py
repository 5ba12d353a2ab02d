"""MaxRL: maximum-likelihood reinforcement learning (https://arxiv.org/abs/2602.02710).

Dividing by the group's mean instead of its deviation gives prompts that are seldom solved a larger weight:
the gradient is that of the log-likelihood of success, expanded up to the order of the group's size. Rewards
are at least 0; the paper's are 0 or 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import centre_rewards, comparable_rewards
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.objective import ClipParams
from rlrun.plugins.types import Group

if TYPE_CHECKING:
    import numpy as np

    from rlrun.plugins.algorithms.advantages import Scores
else:
    from rlrun.plugins import lazy_numpy as np


class MaxRLParams(ClipParams):
    """The parameters of the clipped loss."""


class MaxRL(ClippedGroup):
    """Computes a sample's advantage as (reward - group mean) / group mean."""

    Params = MaxRLParams
    params: MaxRLParams
    advantage_formula = "(r − group mean) / group mean; 0 where the mean is not above 0"

    def scores_of(self, group: Group) -> Scores:
        """Returns (reward - mean) / mean, or zeros where no sample has a reward above 0."""
        rewards, executions = comparable_rewards(group)
        differences = centre_rewards(rewards, False, executions)
        mean = float((rewards - differences)[0]) if len(rewards) else 0.0
        return differences / mean if mean > 0 else np.zeros_like(rewards)
