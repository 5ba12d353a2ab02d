"""Samples that a slightly different policy drew: other numerics in the engine, or weights that moved on."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rlrun.plugins.algorithms.policy_loss import sequence_divergence
from rlrun.plugins.types import LossInputs
from rlrun.specs.section import Section

LARGEST_LOG_RATIO = 20.0


class Correction(Section):
    """Weights each token's policy loss by trainer/engine probability of the policy that generated it."""

    type: Literal["tis", "icepop"] = "tis"
    """`tis` keeps the weight within the bounds (https://fengyao.notion.site/off-policy-rl); `icepop` zeroes
    it outside of them (https://arxiv.org/abs/2510.18855)."""
    low: float = Field(default=0.0, ge=0)
    """Lower bound of the weight."""
    high: float = Field(default=2.0, gt=0)
    """Upper bound of the weight."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        return self


def correction_weight(
    correction: Correction, old_log_probs: Any, rollout_log_probs: Any
) -> tuple[Any, Any, Any]:
    """`[T]` weight, the ratio before the bounds, and 1 where they changed it; without gradient."""
    difference = (old_log_probs - rollout_log_probs).detach()
    ratio = difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    bounded = ratio.clamp(correction.low, correction.high)
    outside = (bounded != ratio).to(ratio.dtype)
    weight = bounded if correction.type == "tis" else ratio * (1 - outside)
    return weight, ratio, outside


def off_policy_mask(inputs: LossInputs, largest_divergence: float) -> Any:
    """`[T]` 0 on whole samples with a negative advantage that the policy has left behind, 1 elsewhere.

    DeepSeek-V3.2's off-policy sequence masking (https://arxiv.org/abs/2512.02556).
    """
    count = inputs.sample_sum(inputs.mask).clamp(min=1)
    advantages = inputs.sample_sum(inputs.advantages * inputs.mask) / count
    far = sequence_divergence(inputs).detach() > largest_divergence
    keep = ~(far & (advantages < 0))
    return keep.to(inputs.mask.dtype)[inputs.sample]
