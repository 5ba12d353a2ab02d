"""Statistics of evaluations: means with intervals, paired comparisons, and what an evaluation can detect.

The samples of one prompt resemble each other, so the prompts, not the samples, are the independent
observations. Every function takes the values of each prompt as a group of their own, and the uncertainty
comes from the spread between groups (cluster-robust standard errors; arXiv:2411.00640).

    rewards of each prompt ──▶ clustered_mean ──▶ 0.221 (0.187 to 0.259)
    … of two models        ──▶ paired_difference ──▶ 0.031 (0.004 to 0.058), p = 0.02
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
"""Share of evaluations whose interval contains the true mean."""
POWER = 0.8
"""Chance to detect a difference as large as the minimum detectable one."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)

Groups = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval.

    Example: `Estimate(mean=0.221, low=0.187, high=0.259, prompts=512, samples=512)`
    """

    mean: float
    low: float
    """nan where a single prompt leaves the interval open."""
    high: float
    prompts: int
    """Prompts with at least one value."""
    samples: int


@dataclass(frozen=True, slots=True)
class Difference:
    """How much higher the second model's mean is than the first one's, on the prompts that both answered."""

    mean: float
    low: float
    high: float
    p_value: float
    """Chance of a difference at least as large if the models were equal; nan for a single prompt."""
    prompts: int
    left_out: int
    """Prompts without a value of one of the models, whose samples all failed."""


def clustered_mean(groups: Groups) -> Estimate | None:
    """Returns the mean of all values with its 95 % interval; None without a value.

    The interval is Student's t with one degree of freedom less than there are prompts. Where all values are 0
    or 1 it is Wilson's, for as many independent values as have the same standard error: near 0 and 1 the t
    interval would leave the range, or have no width. Of other values between 0 and 1, such as estimates of
    pass@k, the interval ends there.
    """
    groups = [group for group in groups if len(group)]
    if not groups:
        return None
    values = np.concatenate(groups, dtype=np.float64)
    sums, counts = _sums(groups)
    prompts, samples = len(groups), len(values)
    mean = math.fsum(values) / samples
    if prompts == 1:
        return Estimate(mean, math.nan, math.nan, prompts, samples)
    residuals = sums - mean * counts
    error = math.sqrt(prompts / (prompts - 1) * float(residuals @ residuals)) / samples
    quantile = t_quantile(0.5 + CONFIDENCE / 2, prompts - 1)
    if np.isin(values, (0.0, 1.0)).all():
        low, high = _wilson(mean, error, quantile, prompts, samples)
    else:
        low, high = mean - quantile * error, mean + quantile * error
        if values.min() >= 0.0 and values.max() <= 1.0:
            low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(mean, low, high, prompts, samples)


def _sums(groups: Groups) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the sum and the number of values of each group, none of which is empty."""
    counts = np.array([len(group) for group in groups])
    return np.add.reduceat(np.concatenate(groups, dtype=np.float64), np.cumsum(counts) - counts), counts


def _wilson(rate: float, error: float, quantile: float, prompts: int, samples: int) -> tuple[float, float]:
    """Returns Wilson's interval of a rate whose standard error is `error`.

    The effective number of values is at most the number of samples, and the number of prompts where no value
    differs from another.
    """
    variance = rate * (1 - rate)
    number = prompts if variance == 0 else min(variance / error**2 if error else math.inf, samples)
    square = quantile**2 / number
    centre = (rate + square / 2) / (1 + square)
    half = math.sqrt(square * variance + square**2 / 4) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_difference(first: Groups, second: Groups) -> Difference | None:
    """Returns the mean difference of two models on the same prompts, second minus first, with a paired test.

    `first[i]` and `second[i]` are the values of prompt i. Every prompt weighs the same. None without a prompt
    that both have values for.

    The test is Student's paired t test of the prompts' means. Its p-value is at least the smallest one of a
    sign test of the prompts that differ, because t is too sure where few prompts differ by the same amount.
    """
    both = [pair for pair in zip(first, second, strict=True) if len(pair[0]) and len(pair[1])]
    if not both:
        return None
    before, after = (np.divide(*_sums(groups)) for groups in zip(*both, strict=True))
    differences = after - before
    prompts, left_out, mean = len(both), len(first) - len(both), float(differences.mean())
    if prompts == 1:
        return Difference(mean, math.nan, math.nan, math.nan, prompts, left_out)
    error = float(differences.std(ddof=1)) / math.sqrt(prompts)
    half = t_quantile(0.5 + CONFIDENCE / 2, prompts - 1) * error
    p_value = _paired_p_value(mean, error, prompts, int(np.count_nonzero(differences)))
    return Difference(mean, mean - half, mean + half, p_value, prompts, left_out)


def _paired_p_value(mean: float, error: float, prompts: int, num_different: int) -> float:
    if not num_different:
        return 1.0
    statistic = abs(mean) / error if error else math.inf
    of_t = 2 * (1 - t_probability(statistic, prompts - 1))
    return min(1.0, max(of_t, 2.0 ** (1 - num_different)))


def detectable_difference(prompts: int, samples: int, variance: float = 0.25) -> float:
    """Returns the smallest difference of two models that a paired test at 5 % finds in four of five cases.

    Both answer the same `prompts`, each `samples` times. `variance` is that of a sample of a prompt: at most
    0.25 for right or wrong, where each prompt is answered right half of the time. Prompts that suit one model
    better than the other add to it. nan for a single prompt.
    """
    if prompts < 2:
        return math.nan
    error = math.sqrt(2 * variance / (prompts * samples))
    freedom = prompts - 1
    return (t_quantile(0.5 + CONFIDENCE / 2, freedom) + t_quantile(POWER, freedom)) * error


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Returns an unbiased estimate of the chance that one of k samples passes (arXiv:2107.03374)."""
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def majority(answers: Sequence[Hashable], passed: Sequence[bool]) -> float:
    """Returns the chance that the most frequent answer of a prompt's samples passes; of several equally
    frequent ones, each is as likely. An answer passes with the share of its samples that pass.
    """
    counts = Counter(answers)
    most = max(counts.values())
    winners = [answer for answer, count in counts.items() if count == most]
    pairs = list(zip(answers, passed, strict=True))
    shares = [sum(right for answer, right in pairs if answer == winner) / most for winner in winners]
    return math.fsum(shares) / len(winners)


def t_probability(value: float, freedom: int) -> float:
    """Returns the probability that Student's t with `freedom` degrees of freedom is at most `value`.

    With t = √freedom · tan θ the density is proportional to cos(θ)^(freedom - 1), which is integrated from 0.
    """
    angle = math.atan(abs(value) / math.sqrt(freedom))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    # the density of many degrees of freedom is narrow: beyond 12 standard deviations there is nothing
    angle = min(angle, 12 / math.sqrt(freedom)) if freedom > 100 else angle
    nodes: NDArray[np.float64] = angle / 2 * (_NODES + 1)
    half = scale * angle / 2 * float(_WEIGHTS @ np.cos(nodes) ** (freedom - 1))
    return 0.5 + math.copysign(min(half, 0.5), value)


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """Returns the value that Student's t does not exceed with this probability, of 0.5 to 0.999."""
    low, high = 0.0, 1e4
    while high - low > 1e-12 * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < probability else (low, middle)
    return (low + high) / 2
