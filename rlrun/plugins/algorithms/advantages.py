"""Computes advantages from rewards: comparisons within a group, returns along a response, whitening of a
step.

Everything is numpy on the driver, which holds all groups of a step, so no statistic has to be reduced over
ranks. Shapes: n samples of a group, R response tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from rlrun.plugins.types import Group, Sample, Status
from rlrun.specs.sections.section import Section

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


def centre_rewards(rewards: Scores, normalize_std: bool, executions: Numbers | None = None) -> Scores:
    """Returns the rewards `[n]` of one group minus their mean; with `normalize_std`, divided by their
    unbiased std + 1e-6.

    `executions` `[n]` numbers the execution of each sample; the samples of one execution together count once.
    None means that every sample is an execution. A group of one has nothing to compare with and gets
    advantage 0.
    """
    numbers, num_others = _execution_numbers(rewards, executions)
    if num_others < 1:
        return np.zeros_like(rewards)
    shares = 1.0 / np.bincount(numbers)[numbers]
    differences: Scores = rewards - (shares * rewards).sum() / (num_others + 1)
    if normalize_std:
        differences /= np.sqrt((shares * differences**2).sum() / num_others) + STD_EPSILON
    return differences


def leave_one_out(rewards: Scores, executions: Numbers | None = None) -> Scores:
    """Returns each reward of a group `[n]` minus the mean reward of the other executions.

    This is RLOO's baseline (https://arxiv.org/abs/2402.14740). Each execution counts once in the mean.
    """
    numbers, num_others = _execution_numbers(rewards, executions)
    if num_others < 1:
        return np.zeros_like(rewards)
    means = np.bincount(numbers, weights=rewards) / np.bincount(numbers)
    advantages: Scores = rewards - (means.sum() - means[numbers]) / num_others
    return advantages


def _execution_numbers(rewards: Scores, executions: Numbers | None) -> tuple[Numbers, int]:
    """Returns the execution of each sample, and with how many other executions each sample is compared."""
    numbers = np.arange(len(rewards)) if executions is None else executions
    return numbers, int(numbers.max(initial=0))


def number_executions(samples: Sequence[Sample]) -> Numbers:
    """Returns `[n]` the number of each sample's execution, counted from 0."""
    numbers: dict[str | int, int] = {}
    names = [sample.execution_id or index for index, sample in enumerate(samples)]
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def is_compared(sample: Sample) -> bool:
    """Returns whether a sample enters its group's statistics; failed and unscored samples do not."""
    return sample.status is not Status.FAILED and bool(np.isfinite(sample.reward))


class Comparison(Section):
    """How the rewards of a group become advantages."""

    subtract_mean: bool = True
    """Subtract the mean reward of the group. False: the reward itself is the advantage, so that a group may
    have a single sample."""
    normalize_std: bool = True
    """Divide advantages by the standard deviation of the group's rewards."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.subtract_mean and self.normalize_std and "normalize_std" in self.model_fields_set:
            raise ValueError("normalize_std has no effect with subtract_mean = false: remove normalize_std")
        return self


def group_relative(groups: Sequence[Group], normalize_std: bool, subtract_mean: bool = True) -> list[Scores]:
    """Returns GRPO's advantages: one `[R]` array for each sample, from `centre_rewards` within its group.

    Without `subtract_mean` they are the rewards themselves.
    """
    comparisons = [(group, *comparable_rewards(group)) for group in groups]
    return [
        array
        for group, rewards, executions in comparisons
        for array in spread_over_tokens(
            group, centre_rewards(rewards, normalize_std, executions) if subtract_mean else rewards
        )
    ]


def comparable_rewards(group: Group) -> tuple[Scores, Numbers]:
    """Returns the rewards of the group's samples that are compared, in order, and the numbers of their
    executions.
    """
    samples = [sample for sample in group.samples if is_compared(sample)]
    return np.array([sample.reward for sample in samples], dtype=np.float64), number_executions(samples)


def spread_over_tokens(group: Group, values: Scores) -> list[Scores]:
    """Spreads one value per compared sample over that sample's tokens; samples that are not compared get
    zeros.
    """
    remaining = iter(values.tolist())
    return [
        np.full(len(sample.tokens), next(remaining) if is_compared(sample) else 0.0)
        for sample in group.samples
    ]


def reward_at_end(reward: float, mask: Array) -> Scores:
    """Returns token rewards `[R]`: the sample's reward on its last trained token, if there is one, and 0
    elsewhere.
    """
    rewards = np.zeros(len(mask))
    trained = np.flatnonzero(mask)
    if len(trained):
        rewards[trained[-1]] = reward
    return rewards


def discounted_sums(values: Scores, discount: float) -> Scores:
    """Returns `y[t] = x[t] + discount * y[t + 1]` along `[R]`, in log2(R) operations on the whole array.

    This uses doubling: after the pass with shift s, y[t] holds the terms t to t + 2s - 1.
    """
    sums = values.astype(np.float64)
    shift, factor = 1, discount
    while shift < len(sums):
        sums[:-shift] += factor * sums[shift:]
        shift, factor = shift * 2, factor * factor
    return sums


def whiten(advantages: Sequence[Scores], masks: Sequence[Array]) -> list[Scores]:
    """Scales advantages to zero mean and unit variance over all trained tokens of a step.

    Tokens that are not trained are shifted and scaled by the same numbers. The variance is Bessel-corrected
    from two tokens on. Raises ValueError when no token is trained.
    """
    values = np.concatenate(advantages, dtype=np.float64) if advantages else np.zeros(0)
    trained = values[np.concatenate(masks) > 0] if masks else values
    if not len(trained):
        raise ValueError("no token of this step is trained: every sample is masked, failed or empty")
    variance = trained.var(ddof=1) if len(trained) > 1 else 0.0
    scale = 1.0 / np.sqrt(variance + VARIANCE_EPSILON)
    return [(array - trained.mean()) * scale for array in advantages]
