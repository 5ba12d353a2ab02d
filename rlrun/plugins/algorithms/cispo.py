"""CISPO: clips the importance weight instead of the loss, so that every token keeps its gradient (MiniMax-M1,
https://arxiv.org/abs/2506.13585).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.algorithms.advantages import Comparison, group_relative
from rlrun.plugins.algorithms.objective import ObjectiveParams, needs_of, objective
from rlrun.plugins.algorithms.policy_loss import cispo_loss
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class CISPOParams(Comparison, ObjectiveParams):
    """GRPO's advantages, and the bounds of the importance weight."""

    clip: float = Field(default=1.0, gt=0, le=1)
    """Lower bound of the weight is 1 - clip; the published 1 means no lower bound."""
    clip_high: float = Field(default=0.28, gt=0)
    """Upper bound of the weight is 1 + clip_high, independent of `clip`."""


class CISPO:
    """Computes GRPO's advantages, and trains with REINFORCE weighted by the clipped, detached ratio."""

    Params = CISPOParams
    api_version = 1

    def __init__(self, params: CISPOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=params.subtract_mean)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns (reward - group mean) / group std for each sample, the same value on each of its tokens."""
        params = self.params
        differences = group_relative(groups, params.normalize_std, params.subtract_mean)
        return shape_advantages(params, groups, differences)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -weight · advantage · log-prob for each token."""
        params = self.params
        pg_loss, clipped = cispo_loss(
            inputs.log_probs, inputs.old_log_probs, inputs.advantages, params.clip, params.clip_high
        )
        return objective(params, inputs, pg_loss, clipped)
