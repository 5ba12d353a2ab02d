"""TOPR: tapered off-policy REINFORCE (https://arxiv.org/abs/2503.14286)."""

from pydantic import Field

from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.types import LossInputs, LossOutputs


class TOPRParams(ComparedParams):
    """How rewards become advantages, the bound of the weight, and the shared terms of the loss."""

    normalize_std: bool = False
    """Divide advantages by the standard deviation of the group's rewards; the paper does not."""
    cap: float = Field(default=1.0, gt=0)
    """Largest weight of a sample with a negative advantage."""


class TOPR(GroupCompared):
    """Trains fully on good samples, and on bad ones only as far as the policy still generates them."""

    Params = TOPRParams
    params: TOPRParams
    advantage_formula = "r − group mean"
    loss_formula = "−A·new, times min(∏ρ, `cap`) where A < 0"
    further_needs = ("engine_ratio",)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -weight · advantage · log-prob. The weight of a bad sample is the product of its tokens'
        ratios, at most `cap`; that of a good one is 1.
        """
        change = inputs.sample_sum((inputs.log_probs - inputs.old_log_probs).detach() * inputs.mask)
        ratio = change.exp()[inputs.sample]
        is_bad = inputs.advantages < 0
        weight = ratio.clamp(max=self.params.cap).where(is_bad, ratio.new_ones(ratio.shape))
        capped = (is_bad & (ratio > self.params.cap)).to(ratio.dtype)
        outputs = objective(self.params, inputs, -weight * inputs.advantages * inputs.log_probs, capped)
        return LossOutputs(outputs.loss, {**outputs.metrics, "topr_weight": weight})
