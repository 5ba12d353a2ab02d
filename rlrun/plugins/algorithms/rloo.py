"""RLOO: REINFORCE with a leave-one-out baseline (https://arxiv.org/abs/2402.14740)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import (
    TurnCredit,
    comparable_rewards,
    leave_one_out,
    returns_of_turns,
    spread_over_turns,
)
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.objective import ClipParams
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group

if TYPE_CHECKING:
    import numpy as np

    from rlrun.plugins.algorithms.advantages import Array, Scores
else:
    from rlrun.plugins import lazy_numpy as np


class RLOOParams(TurnCredit, ClipParams):
    """The parameters of the clipped loss, and what turns are credited with."""


class RLOO(ClippedGroup):
    """Computes a sample's advantage as its reward minus the mean reward of the other samples in its group."""

    Params = RLOOParams
    params: RLOOParams
    advantage_formula = "r − mean of the other samples in the group"

    def scores_of(self, group: Group) -> Scores:
        """Returns reward - mean of the others."""
        return leave_one_out(*comparable_rewards(group))

    def advantages(self, groups: Sequence[Group]) -> list[Array]:
        """Returns the same value on each token of a sample, or of a turn."""
        if self.params.turn_rewards == "episode":
            return super().advantages(groups)
        spread = [array for group in groups for array in spread_over_turns(group, _scores_of_turns(group))]
        return shape_advantages(self.params, groups, spread)


def _scores_of_turns(group: Group) -> Scores:
    """Returns `[turns, n]` each turn's rewards to go - mean of the other executions'."""
    returns, executions = returns_of_turns(group)
    return np.stack([leave_one_out(row, executions) for row in returns])
