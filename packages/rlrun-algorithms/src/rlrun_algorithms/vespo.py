"""VESPO: variational sequence-level soft policy optimisation (https://arxiv.org/abs/2602.10693)."""

from pydantic import Field

from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.types import LossInputs, LossOutputs

MAX_LOG_RATIO = 20.0
"""The authors' bound on the log of a sample's ratio."""


class VESPOParams(ComparedParams):
    """GRPO's advantages, and the shape of the weight W^k · exp(decay · (1 - W)) of a sample with ratio W."""

    k: float = Field(default=2.0, gt=0)
    """Power of the ratio for A >= 0. The weight is largest at W = k / decay."""
    decay: float = Field(default=3.0, gt=0)
    """How fast the weight falls for large ratios with A >= 0. The paper calls it lambda."""
    k_negative: float = Field(default=3.0, gt=0)
    """Power of the ratio for A < 0."""
    decay_negative: float = Field(default=2.0, gt=0)
    """How fast the weight falls for large ratios with A < 0."""


class VESPO(GroupCompared):
    """Weights REINFORCE's gradient of a sample by a smooth function of the sample's whole ratio, without
    dividing by its length. The function is 1 at ratio 1, and 0 for ratios near 0 and for large ones.
    """

    Params = VESPOParams
    params: VESPOParams
    loss_formula = (
        "−stop_gradient(W^k·exp(decay·(1 − W)))·A·new, where W = ∏ρ of the sample; "
        'set `trainer.reduction = "per_token"`'
    )
    further_needs = ("engine_ratio",)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -weight · advantage · log-prob; the metric `vespo_weight` is the weight."""
        params = self.params
        change = inputs.sample_sum((inputs.log_probs - inputs.old_log_probs).detach() * inputs.mask)
        log_ratio = change.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)[inputs.sample]
        is_bad = inputs.advantages < 0
        k = log_ratio.new_tensor(params.k_negative).where(is_bad, params.k)
        decay = log_ratio.new_tensor(params.decay_negative).where(is_bad, params.decay)
        weight = (k * log_ratio + decay * (1 - log_ratio.exp())).exp()
        pg_loss = -weight * inputs.advantages * inputs.log_probs
        outputs = objective(params, inputs, pg_loss, weight.new_zeros(weight.shape))
        return LossOutputs(outputs.loss, {**outputs.metrics, "vespo_weight": weight})
