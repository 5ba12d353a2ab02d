"""LUSPO: length-unbiased sequence policy optimisation (https://arxiv.org/abs/2602.05261)."""

from pydantic import Field

from rlrun.plugins.algorithms.group_compared import OneRatio
from rlrun.plugins.algorithms.grpo import GRPO, GRPOParams
from rlrun.plugins.algorithms.objective import SymmetricClip, clip_terms, objective
from rlrun.plugins.algorithms.policy_loss import mean_divergence
from rlrun.plugins.types import LossInputs, LossOutputs


class LUSPOParams(OneRatio, SymmetricClip, GRPOParams):
    """GRPO's parameters with the paper's clip range for the ratio of a whole sample."""

    clip: float = Field(default=2e-3, gt=0, lt=1)
    """Lower bound of the ratio is 1 - clip."""
    clip_high: float | None = Field(default=2.5e-3, gt=0)
    """Upper bound of the ratio is 1 + clip_high. Where only `clip` is set, it bounds both sides."""


class LUSPO(GRPO):
    """Multiplies GSPO's loss of a sample by the sample's length, so that a token of a long sample counts as
    much as one of a short sample.

    `trainer.reduction = "per_sample_mean"`, the default, is the published mean over samples.
    """

    Params = LUSPOParams
    params: LUSPOParams
    advantage_formula = "as `grpo`"
    loss_formula = "as `gspo`, times the sample’s length in trained tokens"

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns length · the clipped loss of the sample's ratio; the gradient flows through the mean."""
        log_ratio = -mean_divergence(inputs, inputs.old_log_probs)
        pg_loss, clipped = clip_terms(self.params, inputs, log_ratio[inputs.sample])
        length = inputs.sample_sum(inputs.mask)[inputs.sample]
        return objective(self.params, inputs, length * pg_loss, clipped)
