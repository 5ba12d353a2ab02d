"""Advantages from rewards: comparisons inside a group, returns along a response, whitening over a step.

Everything is numpy on the driver, where all groups of a step are at hand, so no statistic ever crosses ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.types import Group, Sample, Status

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Scores = NDArray[np.float64]
else:
    from rlrun.plugins import lazy_numpy as np

STD_EPSILON = 1e-6
VARIANCE_EPSILON = 1e-8


def centred(rewards: Scores, normalize_std: bool) -> Scores:
    """Rewards `[n]` of one group minus their mean; with `normalize_std` over their unbiased std + 1e-6.

    A group of one has nothing to compare with: advantage 0.
    """
    if len(rewards) < 2:
        return np.zeros_like(rewards)
    differences: Scores = rewards - rewards.mean()
    if normalize_std:
        differences /= rewards.std(ddof=1) + STD_EPSILON
    return differences


def leave_one_out(rewards: Scores) -> Scores:
    """Each reward of a group `[n]` minus the mean of the others (RLOO, https://arxiv.org/abs/2402.14740)."""
    count = len(rewards)
    if count < 2:
        return np.zeros_like(rewards)
    advantages: Scores = (rewards - rewards.mean()) * (count / (count - 1))
    return advantages


def is_compared(sample: Sample) -> bool:
    """Whether a sample belongs to its group's statistics: failed and unscored ones do not."""
    return sample.status is not Status.FAILED and bool(np.isfinite(sample.reward))


def group_relative(groups: Sequence[Group], normalize_std: bool) -> list[Array]:
    """GRPO's advantages: one `[R]` array for each sample, `centred` within its group."""
    return [array for group in groups for array in spread(group, centred(compared(group), normalize_std))]


def compared(group: Group) -> Scores:
    """Rewards of the group's samples that count, in order."""
    return np.array([sample.reward for sample in group.samples if is_compared(sample)], dtype=np.float64)


def spread(group: Group, values: Scores) -> list[Array]:
    """One value a sample that counts -> the same on each of its tokens; zeros for samples that don't."""
    remaining = iter(values.tolist())
    return [
        np.full(len(sample.tokens), next(remaining) if is_compared(sample) else 0.0, dtype=np.float32)
        for sample in group.samples
    ]


def reward_at_end(reward: float, mask: Array) -> Scores:
    """Token rewards `[R]`: the sample's reward on its last trained token (if it has one), 0 elsewhere."""
    rewards = np.zeros(len(mask))
    trained = np.flatnonzero(mask)
    if len(trained):
        rewards[trained[-1]] = reward
    return rewards


def discounted_sums(values: Scores, discount: float) -> Scores:
    """`y[t] = x[t] + discount * y[t + 1]` along `[R]`, in log2(R) whole-array steps.

    Doubling: after the pass of shift s, y[t] holds the terms t to t + 2s - 1.
    """
    sums = values.astype(np.float64)
    shift, factor = 1, discount
    while shift < len(sums):
        sums[:-shift] += factor * sums[shift:]
        shift, factor = shift * 2, factor * factor
    return sums


def whiten(advantages: Sequence[Array], masks: Sequence[Array]) -> list[Array]:
    """Zero mean and unit variance over all trained tokens of a step; masked tokens are shifted alike.

    Variance is Bessel-corrected from two tokens on. ValueError when no token is trained.
    """
    values = np.concatenate(advantages, dtype=np.float64) if advantages else np.zeros(0)
    trained = values[np.concatenate(masks) > 0] if masks else values
    if not len(trained):
        raise ValueError("no token of this step is trained: every sample is masked, failed or empty")
    variance = trained.var(ddof=1) if len(trained) > 1 else 0.0
    scale = 1.0 / np.sqrt(variance + VARIANCE_EPSILON)
    return [((array - trained.mean()) * scale).astype(np.float32) for array in advantages]
