"""Changes that the parameters can make to any algorithm's advantages: a KL penalty, distillation, whitening,
the mean of the correction's weights, and a mask of tokens by entropy.

rewards -> minus the KL penalty, token by token -> advantages -> minus distillation -> whitened
        -> divided by the mean weight of the correction -> 0 on tokens of low entropy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from rlrun.plugins.algorithms.advantages import is_compared, whiten
from rlrun.plugins.algorithms.correction import MIN_MEAN, Correction, mean_weight
from rlrun.plugins.algorithms.divergence import DivergenceParams
from rlrun.plugins.algorithms.kl import RewardKLSection, reward_penalty
from rlrun.plugins.types import Group, Sample, Status
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlrun.plugins.algorithms.advantages import Array, Scores
else:
    from rlrun.plugins import lazy_numpy as np


class Distillation(Section):
    """Pulls the policy towards the teacher on the tokens that the policy itself generated."""

    coef: float = Field(default=1.0, gt=0)
    """Weight of the distance, in units of advantage; with `divergence`, in the loss."""
    divergence: DivergenceParams | None = None
    """Add the divergence from the teacher's whole distribution to the loss, such as `{ beta = 0.0 }`. None:
    subtract the distance at the sampled token, policy - teacher log-prob, from the advantages."""

    @property
    def in_advantages(self) -> bool:
        """Whether the distance is subtracted from the advantages."""
        return self.divergence is None


class Shaping(Protocol):
    """The parameters that `shape_advantages` reads."""

    @property
    def distillation(self) -> Distillation | None:
        """The distance to the teacher to subtract; None for no distillation."""

    @property
    def normalize_advantages(self) -> bool:
        """Whether to whiten."""

    @property
    def correction(self) -> Correction | None:
        """The correction, whose weights may be normalised; None for no correction."""

    @property
    def top_entropy(self) -> float | None:
        """The share of tokens that keep their advantages, by entropy; None for all."""


def shape_advantages(params: Shaping, groups: Sequence[Group], advantages: Sequence[Scores]) -> list[Array]:
    """Subtracts coef · (policy - teacher log-prob) from the advantages, then whitens them, then divides them
    by the mean weight of the correction, then sets them to 0 on tokens of low entropy, as the parameters say.

    Subtracting is on-policy distillation: the reverse KL to the teacher, token by token
    (https://thinkingmachines.ai/blog/on-policy-distillation). The policy loss is proportional to the
    advantage, so dividing advantages by the mean weight normalises the weights, and setting them to 0 leaves
    tokens out, on all ranks alike. Raises ValueError when there is no token to whiten.
    """
    samples = [sample for group in groups for sample in group.samples]
    result = list(advantages)
    term = params.distillation
    if term is not None and not term.in_advantages:
        term = None
    if term is not None:
        result = [
            values - term.coef * teacher_distance(sample)
            for sample, values in zip(samples, result, strict=True)
        ]
    # With a teacher, an unscored sample has an advantage too; without one it is left out, at 0.
    counts = [is_compared(sample) if term is None else is_trainable(sample) for sample in samples]
    if params.normalize_advantages:
        masks = [sample.loss_mask * count for sample, count in zip(samples, counts, strict=True)]
        result = [values * count for values, count in zip(whiten(result, masks), counts, strict=True)]
    if params.correction is not None and params.correction.normalize:
        counted = [sample for sample, count in zip(samples, counts, strict=True) if count]
        mean = mean_weight(params.correction, counted)
        result = [values / mean for values in result] if mean > MIN_MEAN else result
    if params.top_entropy is not None:
        threshold = _entropy_threshold(params.top_entropy, samples, counts)
        result = [
            values * (_entropies(sample) >= threshold) for sample, values in zip(samples, result, strict=True)
        ]
    return [values.astype(np.float32) for values in result]


def _entropy_threshold(share: float, samples: Sequence[Sample], counts: Sequence[bool]) -> float:
    """Returns the entropy that this share of the trained tokens reaches, over all samples that count.

    It is the linearly interpolated quantile, as in TRL, so that at least one token reaches it.
    """
    trained = [
        _entropies(sample)[sample.loss_mask > 0]
        for sample, count in zip(samples, counts, strict=True)
        if count
    ]
    entropies = np.concatenate(trained) if trained else np.zeros(0)
    return float(np.quantile(entropies, 1 - share)) if len(entropies) else 0.0


def _entropies(sample: Sample) -> Scores:
    assert sample.policy_entropies is not None, "needs.policy_entropies"
    return sample.policy_entropies.astype(np.float64)


def teacher_distance(sample: Sample) -> Scores:
    """Returns `[R]` policy - teacher log-prob, which does not depend on the reward; 0 on a failed sample, and
    on one for which the teacher has no prompt.
    """
    assert sample.policy_log_probs is not None and sample.teacher_log_probs is not None, "needs.teacher"
    difference: Scores = sample.policy_log_probs.astype(np.float64) - sample.teacher_log_probs
    return difference * (is_trainable(sample) and sample.distilled is not False)


def is_trainable(sample: Sample) -> bool:
    """Returns whether a sample can be trained on; it need not have a reward."""
    return sample.status is not Status.FAILED


def kl_penalty(kl: RewardKLSection, sample: Sample) -> NDArray[np.float64]:
    """Returns `[R]` what the KL penalty in the reward subtracts from each token's reward.

    It is zero without such a penalty, and on tokens that the policy did not generate: it had no choice there,
    and the engine has no log-probs of them.
    """
    if kl.in_reward is None or not is_compared(sample):
        return np.zeros(len(sample.tokens))
    assert sample.policy_log_probs is not None and sample.reference_log_probs is not None, "needs.reference"
    penalty: Scores = reward_penalty(kl.in_reward, sample.policy_log_probs, sample.reference_log_probs)
    penalty = penalty * sample.made
    return penalty if sample.kl_weights is None else penalty * sample.kl_weights


def trained_mask(sample: Sample) -> Array:
    """Returns `[R]` 1 on the tokens that count in a step's statistics, and 0 elsewhere."""
    mask: Array = sample.loss_mask * is_compared(sample)
    return mask
