"""DPPO: divergence proximal policy optimisation (https://arxiv.org/abs/2602.04879)."""

from typing import Any, Literal

from pydantic import Field

from rlrun.plugins.algorithms.correction import MAX_LOG_RATIO
from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.types import LossInputs, LossOutputs

THRESHOLDS = {"tv": 0.15, "kl": 0.05}
"""The thresholds of the authors' runs in verl, `examples/dppo_trainer`."""
KL_EPSILON = 1e-8


class DPPOParams(ComparedParams):
    """GRPO's advantages, and how far the probability of a token may move."""

    divergence: Literal["tv", "kl"] = "tv"
    """Distance between the engine's and the policy's distribution over two outcomes, the token and any other
    token: the total variation |p - q|, or the divergence KL(q ‖ p). q is the engine's probability."""
    threshold: float | None = Field(default=None, gt=0)
    """Largest distance of a token whose probability rises with A > 0, or falls with A < 0. None: 0.15 for
    `tv`, 0.05 for `kl`."""
    threshold_high: float | None = Field(default=None, gt=0)
    """Largest distance of a token with A > 0. None: as `threshold`."""


class DPPO(GroupCompared):
    """Trains with the plain ratio, and leaves out tokens whose probability has already moved too far in the
    direction of their advantage.
    """

    Params = DPPOParams
    params: DPPOParams
    loss_formula = "−ρA, or 0 where the token’s probability moved beyond `threshold` towards A"
    further_needs = ("engine_ratio",)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -ratio · advantage, or 0 on a token that is left out."""
        log_ratio = inputs.log_probs - inputs.old_log_probs
        ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
        left_out = self._moved_too_far(inputs.log_probs.detach(), inputs)
        return objective(self.params, inputs, -ratio * inputs.advantages * (1 - left_out), left_out)

    def _moved_too_far(self, log_probs: Any, inputs: LossInputs) -> Any:
        """Returns `[T]` 1 on the tokens that are left out."""
        params = self.params
        low = THRESHOLDS[params.divergence] if params.threshold is None else params.threshold
        high = low if params.threshold_high is None else params.threshold_high
        probability, old = log_probs.exp(), inputs.old_log_probs.exp()
        change = probability - old
        distance = change.abs()
        if params.divergence == "kl":
            rest, old_rest = (1 - probability).clamp(min=KL_EPSILON), (1 - old).clamp(min=KL_EPSILON)
            distance = old * (inputs.old_log_probs - log_probs) + old_rest * (old_rest / rest).log()
        rises = (inputs.advantages > 0) & (change > 0) & (distance > high)
        falls = (inputs.advantages <= 0) & (change < 0) & (distance > low)
        return (rises | falls).to(log_probs.dtype)
