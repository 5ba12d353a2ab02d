"""CISPO: clips the importance weight instead of the loss, so that every token keeps its gradient (MiniMax-M1,
https://arxiv.org/abs/2506.13585).
"""

from pydantic import Field

from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.algorithms.policy_loss import cispo_loss
from rlrun.plugins.types import LossInputs, LossOutputs


class CISPOParams(ComparedParams):
    """GRPO's advantages, and the bounds of the importance weight."""

    clip: float = Field(default=1.0, gt=0, le=1)
    """Lower bound of the weight is 1 - clip; the published 1 means no lower bound."""
    clip_high: float = Field(default=0.28, gt=0)
    """Upper bound of the weight is 1 + clip_high, independent of `clip`."""


class CISPO(GroupCompared):
    """Computes GRPO's advantages, and trains with REINFORCE weighted by the clipped, detached ratio."""

    Params = CISPOParams
    params: CISPOParams
    loss_formula = '−stop_gradient(clip(ρ))·A·new; set `trainer.reduction = "per_token"`'

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -weight · advantage · log-prob for each token."""
        params = self.params
        pg_loss, clipped = cispo_loss(
            inputs.log_probs, inputs.old_log_probs, inputs.advantages, params.clip, params.clip_high
        )
        return objective(params, inputs, pg_loss, clipped)
