"""Corrects for samples that a slightly different policy drew: an engine with other numerics, or older
weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from rlrun.plugins.algorithms.policy_loss import mean_divergence
from rlrun.plugins.types import LossInputs, Sample
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np

MAX_LOG_RATIO = 20.0
MIN_MEAN = 1e-8
"""Weights with a smaller mean are not normalised."""
Level = Literal["token", "sequence", "geometric"]


class Rejection(Section):
    """Leaves out tokens or samples whose ratio is outside of bounds, whatever their weight is."""

    level: Level | Literal["outlier"] = "token"
    """Each token's own ratio, the product over its sample's tokens, or their geometric mean. `outlier`: the
    tokens' own, and one outside of the bounds leaves out its whole sample."""
    low: float = Field(ge=0)
    """Smallest ratio that is kept."""
    high: float = Field(gt=0)
    """Largest ratio that is kept."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        return self


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
    level: Level = "token"
    """`mis`: each token's own ratio, the product over its sample's tokens, or their geometric mean."""
    mode: Literal["truncate", "clip", "mask"] = "truncate"
    """`mis`: lower a weight to `high`, keep it between `low` and `high`, or zero it outside of them."""
    veto: float | None = Field(default=None, gt=0, lt=1)
    """`mis`: leave out a whole sample when the ratio of any of its tokens is below this. None: no veto."""
    rejection: Rejection | None = None
    """`mis`: leave out tokens or whole samples by bounds of their own, such as `{ low = 0.5, high = 2.0 }`.
    None: only `mode` and `veto` do."""
    normalize: bool = False
    """`mis`: divide the weights by their mean over the step, so that they are 1 on average: the mean over all
    trained tokens, or for weights of whole samples over the samples. Tokens that are left out count in it
    with the weight that they would have."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.bounds
        if low >= high:
            raise ValueError(f"low ({low:g}) must be below high ({high:g})")
        unused = sorted(self.model_fields_set & {"level", "mode", "veto", "rejection", "normalize"})
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

    @property
    def limits(self) -> tuple[float, float]:
        """The numbers between which `mode` keeps a weight; a masked weight has none besides zero."""
        low, high = self.bounds
        return (0.0 if self.type == "mis" and self.mode == "truncate" else low), high

    @property
    def masks(self) -> bool:
        """Whether a weight outside of the bounds becomes zero."""
        return self.type == "icepop" or (self.type == "mis" and self.mode == "mask")


class CorrectionWeight(NamedTuple):
    """How the correction weights each token; every field is a `[T]` tensor without gradient."""

    weight: Any
    """The factor of the policy loss."""
    ratio: Any
    """The ratio of the trainer's to the engine's probability, before the bounds."""
    outside: Any
    """1 where the bounds changed the ratio, else 0."""
    rejected: Any
    """1 on the tokens that `rejection` leaves out."""
    vetoed: Any
    """1 on the tokens of samples that the veto leaves out."""


def correction_weight(correction: Correction, inputs: LossInputs) -> CorrectionWeight:
    """Returns the weight of each token, before `normalize`. Tokens with weight 0 still count in the loss's
    denominators.
    """
    difference = (inputs.old_log_probs - inputs.rollout_log_probs).detach()
    ratio = _ratio(correction.level, difference, inputs)
    bounded = ratio.clamp(*correction.limits)
    outside = (bounded != ratio).to(ratio.dtype)
    weight = ratio * (1 - outside) if correction.masks else bounded
    rejected = _rejection_mask(correction.rejection, difference, inputs)
    vetoed = _veto_mask(correction, difference, inputs)
    return CorrectionWeight(weight * (1 - rejected) * (1 - vetoed), ratio, outside, rejected, vetoed)


def mean_weight(correction: Correction, samples: Sequence[Sample]) -> float:
    """Returns the mean weight of the trained tokens of a step, or of its samples where a sample's tokens have
    the same weight. Nothing is masked, rejected or vetoed yet. 1 if no token is trained.

    The samples have `policy_log_probs`. The driver has all samples of a step, so the mean does not depend on
    the micro-batches or on the ranks.
    """
    weights: list[NDArray[np.float64]] = []
    for sample in samples:
        trained = sample.loss_mask > 0
        if not trained.any():
            continue
        assert sample.policy_log_probs is not None, "needs.policy_log_probs"
        log_ratios = (sample.policy_log_probs.astype(np.float64) - sample.log_probs)[trained]
        if correction.level != "token":
            total = log_ratios.sum() if correction.level == "sequence" else log_ratios.mean()
            log_ratios = np.full(1, total)
        ratios = np.exp(log_ratios.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))
        weights.append(ratios if correction.masks else ratios.clip(*correction.limits))
    return float(np.concatenate(weights).mean()) if weights else 1.0


def _ratio(level: Level, difference: Any, inputs: LossInputs) -> Any:
    """Returns ratios `[T]`: each token's own, or the product or the geometric mean over its sample's trained
    tokens. `difference` `[T]` holds the logs of the tokens' own ratios.
    """
    log_ratio = difference
    if level != "token":
        totals = inputs.sample_sum(difference * inputs.mask)
        if level == "geometric":
            totals = totals / inputs.sample_sum(inputs.mask).clamp(min=1)
        log_ratio = totals[inputs.sample]
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _rejection_mask(rejection: Rejection | None, difference: Any, inputs: LossInputs) -> Any:
    """Returns 1 on every token that `rejection` leaves out."""
    if rejection is None:
        return difference.new_zeros(difference.shape)
    ratio = _ratio("token" if rejection.level == "outlier" else rejection.level, difference, inputs)
    outside = ((ratio < rejection.low) | (ratio > rejection.high)).to(difference.dtype)
    if rejection.level == "outlier":
        return (inputs.sample_sum(outside * inputs.mask) > 0).to(difference.dtype)[inputs.sample]
    return outside


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
