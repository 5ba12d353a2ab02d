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
    Numbers = NDArray[np.int64]
else:
    from rlrun.plugins import lazy_numpy as np

STD_EPSILON = 1e-6
VARIANCE_EPSILON = 1e-8


def centred(rewards: Scores, normalize_std: bool, executions: Numbers | None = None) -> Scores:
    """Rewards `[n]` of one group minus their mean; with `normalize_std` over their unbiased std + 1e-6.

    `executions` `[n]` numbers the executions that left the samples, each of which counts once; None: every
    sample is one. A group of one has nothing to compare with: advantage 0.
    """
    own, others = _executions(rewards, executions)
    if others < 1:
        return np.zeros_like(rewards)
    shares = 1.0 / np.bincount(own)[own]
    differences: Scores = rewards - (shares * rewards).sum() / (others + 1)
    if normalize_std:
        differences /= np.sqrt((shares * differences**2).sum() / others) + STD_EPSILON
    return differences


def leave_one_out(rewards: Scores, executions: Numbers | None = None) -> Scores:
    """Each reward of a group `[n]` minus the mean of the others (RLOO, https://arxiv.org/abs/2402.14740):
    those of other executions, each of which counts once.
    """
    own, others = _executions(rewards, executions)
    if others < 1:
        return np.zeros_like(rewards)
    means = np.bincount(own, weights=rewards) / np.bincount(own)
    advantages: Scores = rewards - (means.sum() - means[own]) / others
    return advantages


def _executions(rewards: Scores, executions: Numbers | None) -> tuple[Numbers, int]:
    """The execution of each sample, and how many others a sample is compared with."""
    own = np.arange(len(rewards)) if executions is None else executions
    return own, int(own.max(initial=0))


def executions_of(samples: Sequence[Sample]) -> Numbers:
    """`[n]` numbers, from 0, of the executions that left these samples."""
    numbers: dict[str | int, int] = {}
    names = [sample.execution_id or place for place, sample in enumerate(samples)]
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def is_compared(sample: Sample) -> bool:
    """Whether a sample belongs to its group's statistics: failed and unscored ones do not."""
    return sample.status is not Status.FAILED and bool(np.isfinite(sample.reward))


def group_relative(groups: Sequence[Group], normalize_std: bool) -> list[Scores]:
    """GRPO's advantages: one `[R]` array for each sample, `centred` within its group."""
    found = [(group, *compared(group)) for group in groups]
    return [
        array
        for group, rewards, executions in found
        for array in spread(group, centred(rewards, normalize_std, executions))
    ]


def compared(group: Group) -> tuple[Scores, Numbers]:
    """Rewards of the group's samples that count, in order, and the executions that left them."""
    samples = [sample for sample in group.samples if is_compared(sample)]
    return np.array([one.reward for one in samples], dtype=np.float64), executions_of(samples)


def spread(group: Group, values: Scores) -> list[Scores]:
    """One value a sample that counts -> the same on each of its tokens; zeros for samples that don't."""
    remaining = iter(values.tolist())
    return [
        np.full(len(sample.tokens), next(remaining) if is_compared(sample) else 0.0)
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


def whiten(advantages: Sequence[Scores], masks: Sequence[Array]) -> list[Scores]:
    """Zero mean and unit variance over all trained tokens of a step; masked tokens are shifted alike.

    Variance is Bessel-corrected from two tokens on. ValueError when no token is trained.
    """
    values = np.concatenate(advantages, dtype=np.float64) if advantages else np.zeros(0)
    trained = values[np.concatenate(masks) > 0] if masks else values
    if not len(trained):
        raise ValueError("no token of this step is trained: every sample is masked, failed or empty")
    variance = trained.var(ddof=1) if len(trained) > 1 else 0.0
    scale = 1.0 / np.sqrt(variance + VARIANCE_EPSILON)
    return [(array - trained.mean()) * scale for array in advantages]
