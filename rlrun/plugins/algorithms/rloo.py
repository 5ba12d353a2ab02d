"""RLOO: REINFORCE with a leave-one-out baseline (https://arxiv.org/abs/2402.14740)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import comparable_rewards, leave_one_out
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.objective import ClipParams
from rlrun.plugins.types import Group

if TYPE_CHECKING:
    from rlrun.plugins.algorithms.advantages import Scores


class RLOOParams(ClipParams):
    """The parameters of the clipped loss."""


class RLOO(ClippedGroup):
    """Computes a sample's advantage as its reward minus the mean reward of the other samples in its group."""

    Params = RLOOParams
    params: RLOOParams
    advantage_formula = "r − mean of the other samples in the group"

    def scores_of(self, group: Group) -> Scores:
        """Returns reward - mean of the others."""
        return leave_one_out(*comparable_rewards(group))
