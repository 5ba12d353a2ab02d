"""Computes advantages from rewards: comparisons within a group, returns along a response, whitening of a
step.

Everything is numpy on the driver, which holds all groups of a step, so no statistic has to be reduced over
ranks. Shapes: n samples of a group, R response tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from rlrun.plugins.types import Group, Sample
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
Divisor = Literal["n-1", "n"]
"""What a standard deviation divides the sum of n squared differences by."""
VARIANCE_EPSILON = 1e-8


def zero_advantages(groups: Sequence[Group]) -> list[Array]:
    """Returns the advantages of an algorithm whose loss reads none: one `[R]` array for each sample."""
    return [np.zeros(len(sample.tokens), dtype=np.float32) for group in groups for sample in group.samples]


def centre_rewards(
    rewards: Scores,
    normalize_std: bool,
    executions: Numbers | None = None,
    divisor: Divisor = "n-1",
    epsilon: float = STD_EPSILON,
) -> Scores:
    """Returns the rewards `[n]` of one group minus their mean; with `normalize_std`, divided by their std,
    which has this `divisor`, + `epsilon`. Of returns `[turns, n]`, each turn's minus its mean, all divided by
    the std of the first turn's, which are those of whole episodes.

    `executions` `[n]` numbers the execution of each sample; the samples of one execution together count once.
    None means that every sample is an execution. A group of one has nothing to compare with and gets
    advantage 0.
    """
    numbers, num_others = _execution_numbers(rewards, executions)
    if num_others < 1:
        return np.zeros_like(rewards)
    shares = 1.0 / np.bincount(numbers)[numbers]
    differences: Scores = rewards - (shares * rewards).sum(-1, keepdims=True) / (num_others + 1)
    if normalize_std:
        of_episodes = np.atleast_2d(differences)[0]
        count = num_others if divisor == "n-1" else num_others + 1
        differences /= np.sqrt((shares * of_episodes**2).sum() / count) + epsilon
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
    numbers = np.arange(rewards.shape[-1]) if executions is None else executions
    return numbers, int(numbers.max(initial=0))


def number_executions(samples: Sequence[Sample]) -> Numbers:
    """Returns `[n]` the number of each sample's execution, counted from 0."""
    numbers: dict[str | int, int] = {}
    names = [sample.execution_id or index for index, sample in enumerate(samples)]
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def is_compared(sample: Sample) -> bool:
    """Returns whether a sample enters its group's statistics; failed and unscored samples do not, and neither
    do demonstrations.
    """
    return sample.is_scored and not sample.is_demonstration


TurnRewards = Literal["episode", "to_go"]
"""Which rewards of a sample are credited to the tokens of a turn: all of them, or those from this turn on."""


class TurnCredit(Section):
    """What the tokens of a turn are credited with, where a sample has several turns."""

    turn_rewards: TurnRewards = "episode"
    """Which rewards of a sample the tokens of a turn are compared by. "episode": all of them, the sample's
    reward. "to_go": the rewards of this turn and of those after it, where the rollout gives turns rewards;
    the baseline of turn k is the group's mean of the same, in which executions that ended before count as
    0."""


class Comparison(TurnCredit):
    """How the rewards of a group become advantages."""

    subtract_mean: bool = True
    """Subtract the mean reward of the group. False: the reward itself is the advantage, so that a group may
    have a single sample."""
    normalize_std: bool = True
    """Divide advantages by the standard deviation of the group's rewards."""
    std_divisor: Divisor = "n-1"
    """What the standard deviation of a group of n divides by. "n-1": as torch.std does, which most trainers
    use. "n": as numpy.std does."""
    std_epsilon: float = Field(default=STD_EPSILON, gt=0)
    """Added to the standard deviation. TRL adds 1e-4."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.subtract_mean and self.normalize_std and "normalize_std" in self.model_fields_set:
            raise ValueError("normalize_std has no effect with subtract_mean = false: remove normalize_std")
        unused = sorted(self.model_fields_set & {"std_divisor", "std_epsilon"})
        if unused and not (self.normalize_std and self.subtract_mean):
            raise ValueError(
                f"no effect of {' and '.join(unused)}: advantages are not divided by a standard deviation; "
                "remove it, or set normalize_std = true"
            )
        return self


def group_relative(
    groups: Sequence[Group],
    normalize_std: bool,
    subtract_mean: bool = True,
    turn_rewards: TurnRewards = "episode",
    *,
    divisor: Divisor = "n-1",
    epsilon: float = STD_EPSILON,
) -> list[Scores]:
    """Returns GRPO's advantages: one `[R]` array for each sample, from `centre_rewards` within its group.

    Without `subtract_mean` they are the rewards themselves. With the rewards "to_go", each turn is compared
    with the same turn of the other samples.
    """
    rewards_of, spread = comparable_rewards, spread_over_tokens
    if turn_rewards == "to_go":
        rewards_of, spread = returns_of_turns, spread_over_turns
    comparisons = [(group, *rewards_of(group)) for group in groups]
    return [
        array
        for group, rewards, executions in comparisons
        for array in spread(
            group,
            centre_rewards(rewards, normalize_std, executions, divisor, epsilon)
            if subtract_mean
            else rewards,
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


def rewarded_turns(sample: Sample) -> tuple[list[int], Scores]:
    """Returns the end of each turn in the response, and the turns' rewards, whose sum is the sample's reward.

    What the rollout's rewards of turns lack to the sample's reward, such as the score of a further reward
    plugin, belongs to the last turn. A sample without rewards of turns counts as one turn.
    """
    if not sample.turn_rewards:
        return [len(sample.tokens)], np.array([sample.reward])
    rewards = np.array([turn.reward for turn in sample.turn_rewards])
    rewards[-1] += sample.reward - rewards.sum()
    return [turn.end for turn in sample.turn_rewards], rewards


def returns_of_turns(group: Group) -> tuple[Scores, Numbers]:
    """Returns `[turns, n]` the rewards of each turn and those after it, for the samples that are compared,
    and the numbers of their executions. A sample has 0 in the turns after its last.

    The zeros keep the mean over the group unbiased as a baseline of each turn: every execution counts in it,
    however long the policy chose to go on. A mean over the samples that reached the turn, the sample itself
    included, scales its gradient by 1 - 1 / (their number), which differs from turn to turn
    (tests/plugins/algorithms/test_turn_gradients.py).
    """
    samples = [sample for sample in group.samples if is_compared(sample)]
    rewards = [rewarded_turns(sample)[1] for sample in samples]
    returns = np.zeros((max(map(len, rewards), default=1), len(samples)))
    for number, own in enumerate(rewards):
        returns[: len(own), number] = np.cumsum(own[::-1])[::-1]
    return returns, number_executions(samples)


def spread_over_turns(group: Group, values: Scores) -> list[Scores]:
    """Spreads `[turns, n]` values of compared samples over the tokens of their turns; a token that the policy
    was given has the value of the turn that follows. Samples that are not compared get zeros.
    """
    remaining = iter(values.T)
    return [
        _repeat_over_turns(sample, next(remaining)) if is_compared(sample) else np.zeros(len(sample.tokens))
        for sample in group.samples
    ]


def _repeat_over_turns(sample: Sample, values: Scores) -> Scores:
    ends, _ = rewarded_turns(sample)
    turns = np.searchsorted(ends, np.arange(len(sample.tokens)), side="right")
    return np.append(values[: len(ends)], 0.0)[turns]


def token_rewards(sample: Sample, mask: Array) -> Scores:
    """Returns `[R]` the reward of each turn on its last trained token, and 0 elsewhere.

    The reward of a turn of which no token is trained is on the trained token before it, or on the first one.
    """
    rewards = np.zeros(len(mask))
    trained = np.flatnonzero(mask)
    if len(trained):
        ends, values = rewarded_turns(sample)
        np.add.at(rewards, trained[np.maximum(np.searchsorted(trained, ends) - 1, 0)], values)
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
