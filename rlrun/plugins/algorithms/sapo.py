"""SAPO: soft adaptive policy optimisation (https://arxiv.org/abs/2511.20347)."""

from pydantic import Field

from rlrun.plugins.algorithms.correction import MAX_LOG_RATIO
from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.types import LossInputs, LossOutputs


class SAPOParams(ComparedParams):
    """GRPO's advantages, and how fast a token's gradient fades as its ratio leaves 1."""

    tau: float = Field(default=1.0, gt=0)
    """Temperature for A > 0. The gradient is the plain ratio's for a small one, and 0 beside ratio 1 for a
    large one."""
    tau_negative: float = Field(default=1.05, gt=0)
    """Temperature for A <= 0. It is larger, because these gradients raise many unsampled tokens."""


class SAPO(GroupCompared):
    """Trains with a sigmoid of the ratio instead of a clipped ratio, so that no gradient is cut off."""

    Params = SAPOParams
    params: SAPOParams
    loss_formula = "−σ(τ(ρ − 1))·(4/τ)·A, with τ by the sign of A"

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -sigmoid(tau · (ratio - 1)) · 4 / tau · advantage, with REINFORCE's gradient at ratio 1.

        Nothing is clipped. The metric `sapo_gate` is the weight that a token's gradient keeps: 1 at ratio 1.
        """
        log_ratio = inputs.log_probs - inputs.old_log_probs
        # A ratio of inf would have the gradient 0 · inf.
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        tau = ratio.new_tensor(self.params.tau).where(inputs.advantages > 0, self.params.tau_negative)
        gate = (tau * (ratio - 1)).sigmoid()
        kept = (4 * gate * (1 - gate)).detach()
        outputs = objective(
            self.params, inputs, -gate * 4 / tau * inputs.advantages, kept.new_zeros(kept.shape)
        )
        return LossOutputs(outputs.loss, {**outputs.metrics, "sapo_gate": kept})
