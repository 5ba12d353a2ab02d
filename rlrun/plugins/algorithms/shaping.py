"""What parameters ask of any algorithm's advantages: a KL penalty in the reward, distillation, whitening.

rewards -> (less a KL penalty, token by token) -> estimator -> less distillation -> whitened
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from rlrun.plugins.algorithms.advantages import is_compared, whiten
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
    """Pulls the policy towards the teacher on what the policy itself wrote."""

    coef: float = Field(default=1.0, gt=0)
    """Weight of the distance, in units of advantage."""


class Shaping(Protocol):
    """The parameters that `shaped` heeds."""

    @property
    def distillation(self) -> Distillation | None:
        """Distance to the teacher."""

    @property
    def normalize_advantages(self) -> bool:
        """Whiten."""


def shaped(params: Shaping, groups: Sequence[Group], advantages: Sequence[Scores]) -> list[Array]:
    """Advantages less coef · (policy - teacher log-prob), then whitened, as far as the parameters say so.

    On-policy distillation: the reverse KL to the teacher, token by token
    (https://thinkingmachines.ai/blog/on-policy-distillation). ValueError when there is no token to whiten.
    """
    samples = [sample for group in groups for sample in group.samples]
    result = list(advantages)
    if (term := params.distillation) is not None:
        result = [
            values - term.coef * distance(sample) for sample, values in zip(samples, result, strict=True)
        ]
    if params.normalize_advantages:
        # An unscored sample has an advantage from its teacher alone; without one it stays out, at 0.
        counts = [is_compared(one) if term is None else is_whole(one) for one in samples]
        masks = [sample.loss_mask * count for sample, count in zip(samples, counts, strict=True)]
        result = [values * count for values, count in zip(whiten(result, masks), counts, strict=True)]
    return [values.astype(np.float32) for values in result]


def distance(sample: Sample) -> Scores:
    """`[R]` policy - teacher log-prob, whatever the rewards say; 0 on a failed sample."""
    assert sample.policy_log_probs is not None and sample.teacher_log_probs is not None, "needs.teacher"
    difference: Scores = sample.policy_log_probs.astype(np.float64) - sample.teacher_log_probs
    return difference * is_whole(sample)


def is_whole(sample: Sample) -> bool:
    """Whether anything can be learnt from a sample; it need not have a reward."""
    return sample.status is not Status.FAILED


def penalty(kl: RewardKLSection, sample: Sample) -> NDArray[np.float64]:
    """`[R]` what the KL in the reward takes off each token's; zeros without one, and on tokens that the
    policy was given: it chose nothing there, and the engine has no log-probs of them.
    """
    if kl.in_reward is None or not is_compared(sample):
        return np.zeros(len(sample.tokens))
    assert sample.policy_log_probs is not None and sample.reference_log_probs is not None, "needs.reference"
    found: Scores = reward_penalty(kl.in_reward, sample.policy_log_probs, sample.reference_log_probs)
    return found * sample.made


def trained(sample: Sample) -> Array:
    """`[R]` 1 on the tokens that count in a step's statistics."""
    mask: Array = sample.loss_mask * is_compared(sample)
    return mask
