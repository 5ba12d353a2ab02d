"""Corrects for samples that a slightly different policy drew: an engine with other numerics, or older
weights.
"""

import math
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from rlrun.plugins.algorithms.policy_loss import mean_divergence
from rlrun.plugins.types import LossInputs
from rlrun.specs.sections.section import Section

LARGEST_LOG_RATIO = 20.0


class Correction(Section):
    """Weights each token's policy loss by the ratio of the trainer's to the engine's probability of the
    token.
    """

    type: Literal["tis", "icepop", "mis"] = "tis"
    """`tis` keeps a token's weight within the bounds (https://fengyao.notion.site/off-policy-rl); `icepop`
    sets it to zero outside of them (https://arxiv.org/abs/2510.18855); `mis` weights tokens or whole samples,
    bounds the weights as `mode` says, and can veto samples (https://richardli.xyz/rl-collapse)."""
    low: float | None = Field(default=None, ge=0)
    """Lower bound of the weight. None: 0.5 for `icepop`, else 0."""
    high: float | None = Field(default=None, gt=0)
    """Upper bound of the weight. None: 5 for `icepop`, else 2."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """`mis`: each token's own ratio, the product over its sample's tokens, or their geometric mean."""
    mode: Literal["truncate", "clip", "mask"] = "truncate"
    """`mis`: lower a weight to `high`, keep it between `low` and `high`, or zero it outside of them."""
    veto: float | None = Field(default=None, gt=0, lt=1)
    """`mis`: leave out a whole sample when the ratio of any of its tokens is below this. None: no veto."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.bounds
        if low >= high:
            raise ValueError(f"low ({low:g}) must be below high ({high:g})")
        unused = sorted(self.model_fields_set & {"level", "mode", "veto"})
        if self.type != "mis" and unused:
            raise ValueError(
                f'only type = "mis" reads {" and ".join(unused)}: remove it, or set type = "mis"'
            )
        if self.type == "mis" and self.mode == "truncate" and "low" in self.model_fields_set:
            raise ValueError('mode = "truncate" has no lower bound: remove low')
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of the weight: those of the spec, or else the published ones of its type."""
        low, high = (0.5, 5.0) if self.type == "icepop" else (0.0, 2.0)
        return low if self.low is None else self.low, high if self.high is None else self.high


class CorrectionWeight(NamedTuple):
    """How the correction weights each token; every field is a `[T]` tensor without gradient."""

    weight: Any
    """The factor of the policy loss."""
    ratio: Any
    """The ratio of the trainer's to the engine's probability, before the bounds."""
    outside: Any
    """1 where the bounds changed the ratio, else 0."""
    vetoed: Any
    """1 on the tokens of samples that the veto leaves out."""


def correction_weight(correction: Correction, inputs: LossInputs) -> CorrectionWeight:
    """Returns the weight of each token. Tokens with weight 0 still count in the loss's denominators."""
    difference = (inputs.old_log_probs - inputs.rollout_log_probs).detach()
    ratio = _log_ratio(correction, difference, inputs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    low, high = correction.bounds
    low = 0.0 if correction.type == "mis" and correction.mode == "truncate" else low
    bounded = ratio.clamp(low, high)
    outside = (bounded != ratio).to(ratio.dtype)
    zeroes = correction.type == "icepop" or (correction.type == "mis" and correction.mode == "mask")
    weight = ratio * (1 - outside) if zeroes else bounded
    vetoed = _veto_mask(correction, difference, inputs)
    return CorrectionWeight(weight * (1 - vetoed), ratio, outside, vetoed)


def _log_ratio(correction: Correction, difference: Any, inputs: LossInputs) -> Any:
    """Returns log-ratios `[T]`: each token's own, or the sum or mean over its sample's trained tokens."""
    if correction.level == "token":
        return difference
    totals = inputs.sample_sum(difference * inputs.mask)
    if correction.level == "geometric":
        totals = totals / inputs.sample_sum(inputs.mask).clamp(min=1)
    return totals[inputs.sample]


def _veto_mask(correction: Correction, difference: Any, inputs: LossInputs) -> Any:
    """Returns 1 on every token of a sample that has a trained token with a ratio below the veto."""
    if correction.veto is None:
        return difference.new_zeros(difference.shape)
    catastrophic = (difference < math.log(correction.veto)).to(difference.dtype) * inputs.mask
    return (inputs.sample_sum(catastrophic) > 0).to(difference.dtype)[inputs.sample]


def off_policy_mask(inputs: LossInputs, largest_divergence: float) -> Any:
    """Returns `[T]` 0 on samples with a negative advantage that have become unlikely under the new policy,
    else 1.

    This is DeepSeek-V3.2's off-policy sequence masking (https://arxiv.org/abs/2512.02556, section 3.1). Its
    old policy is the sampling probability that the inference engine returned, so the divergence includes both
    stale weights and the engine's different numerics. `trainer.old_log_probs` only affects the ratio.
    """
    count = inputs.sample_sum(inputs.mask).clamp(min=1)
    advantages = inputs.sample_sum(inputs.advantages * inputs.mask) / count
    far = mean_divergence(inputs, inputs.rollout_log_probs).detach() > largest_divergence
    keep = ~(far & (advantages < 0))
    return keep.to(inputs.mask.dtype)[inputs.sample]
