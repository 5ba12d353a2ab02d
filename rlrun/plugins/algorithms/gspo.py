"""GSPO: group sequence policy optimisation (https://arxiv.org/abs/2507.18071)."""

from pydantic import Field

from rlrun.plugins.algorithms.group_compared import OneRatio
from rlrun.plugins.algorithms.grpo import GRPO, GRPOParams
from rlrun.plugins.algorithms.objective import SymmetricClip, clipped_objective
from rlrun.plugins.algorithms.policy_loss import mean_divergence
from rlrun.plugins.types import LossInputs, LossOutputs


class SampleClipParams(SymmetricClip, GRPOParams):
    """GRPO's parameters with a far narrower clip range: a sequence's ratio moves less than a token's."""

    clip: float = Field(default=3e-4, gt=0, lt=1)
    """Lower bound of the ratio is 1 - clip."""
    clip_high: float | None = Field(default=4e-4, gt=0)
    """Upper bound of the ratio is 1 + clip_high. Where only `clip` is set, it bounds both sides."""


class GSPOParams(OneRatio, SampleClipParams):
    """The clip range of the sample's ratio."""


class GSPO(GRPO):
    """Uses GRPO's advantages, and the ratio of the whole sample (the geometric mean of its tokens' ratios) on
    each of its tokens.
    """

    Params: type[GRPOParams] = GSPOParams
    advantage_formula = "as `grpo`"
    loss_formula = "as `grpo`, where ρ is the geometric mean over the sample’s tokens"

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns the clipped loss of the sample's ratio; the gradient flows through the mean."""
        log_ratio = -mean_divergence(inputs, inputs.old_log_probs)
        return clipped_objective(self.params, inputs, log_ratio[inputs.sample])
