"""CISPO: clipped importance weights, so that no token loses its gradient (MiniMax-M1, https://arxiv.org/abs/2506.13585)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.algorithms.advantages import group_relative
from rlrun.plugins.algorithms.objective import ObjectiveParams, needs_of, objective
from rlrun.plugins.algorithms.policy_loss import cispo_loss
from rlrun.plugins.algorithms.shaping import shaped
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class CISPOParams(ObjectiveParams):
    """The bounds of the importance weight."""

    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    clip: float = Field(default=1.0, gt=0, le=1)
    """The weight counts no lower than 1 - clip; 1 is no lower bound, as published."""
    clip_high: float = Field(default=0.28, gt=0)
    """The weight counts no higher than 1 + clip_high, whatever `clip` is."""


class CISPO:
    """GRPO's advantages; REINFORCE with the clipped, detached ratio as its weight."""

    Params = CISPOParams
    api_version = 1

    def __init__(self, params: CISPOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """(reward - group mean) / group std, the same on every token of a sample."""
        return shaped(self.params, groups, group_relative(groups, self.params.normalize_std))

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """-weight · advantage · log-prob."""
        params = self.params
        pg_loss, clipped = cispo_loss(
            inputs.log_probs, inputs.old_log_probs, inputs.advantages, params.clip, params.clip_high
        )
        return objective(params, inputs, pg_loss, clipped)
