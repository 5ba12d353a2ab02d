"""Intervals and tests hold what they promise, on simulated evaluations whose truth is known."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from rlrun.runner.records.statistics import (
    clustered_mean,
    detectable_difference,
    majority,
    paired_difference,
    pass_at_k,
    t_probability,
    t_quantile,
)

DRAWS = 4000


@pytest.mark.parametrize(
    ("n", "passed", "k", "rate"), [(4, 0, 2, 0.0), (4, 4, 1, 1.0), (4, 3, 2, 1.0), (5, 1, 1, 0.2)]
)
def test_pass_at_k(n: int, passed: int, k: int, rate: float) -> None:
    assert pass_at_k(n, passed, k) == pytest.approx(rate)


def test_pass_at_k_has_no_bias() -> None:
    rng = np.random.default_rng(1)
    chance, n, k = 0.2, 8, 4
    counts = rng.binomial(n, chance, size=20_000)
    estimate = np.mean([pass_at_k(n, int(passed), k) for passed in counts])
    assert estimate == pytest.approx(1 - (1 - chance) ** k, abs=0.005)


@pytest.mark.parametrize(
    ("freedom", "probability", "value"),
    [  # tables of Student's t
        (1, 0.975, 12.7062),
        (2, 0.975, 4.3027),
        (5, 0.975, 2.5706),
        (30, 0.8, 0.8538),
        (120, 0.975, 1.9799),
        (10**6, 0.975, 1.95997),
    ],
)
def test_quantiles_of_t(freedom: int, probability: float, value: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(value, rel=1e-4)
    assert t_probability(-value, freedom) == pytest.approx(1 - probability, rel=1e-3)


def correct_answers(
    rng: np.random.Generator, prompts: int, samples: int, mean: float, spread: float
) -> NDArray[np.float64]:
    """`[prompts, samples]` of 0 and 1; each prompt's chance is drawn from a Beta distribution."""
    total = 1 / spread - 1
    chances = rng.beta(mean * total, (1 - mean) * total, size=(prompts, 1))
    return (rng.random((prompts, samples)) < chances).astype(np.float64)


@pytest.mark.parametrize(
    ("prompts", "samples", "mean", "spread"),
    [
        (30, 8, 0.5, 0.3),
        (512, 1, 0.221, 0.3),
        (100, 16, 0.7, 0.6),
        (500, 4, 0.1, 0.2),
    ],
)
def test_intervals_cover_the_truth_in_95_percent(
    prompts: int, samples: int, mean: float, spread: float
) -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(DRAWS):
        estimate = clustered_mean(correct_answers(rng, prompts, samples, mean, spread))  # type: ignore[arg-type]
        assert estimate is not None
        covered += estimate.low <= mean <= estimate.high
    assert 0.94 <= covered / DRAWS <= 0.96


def test_intervals_of_other_rewards_and_uneven_groups_cover_the_truth() -> None:
    """Samples that failed leave prompts with fewer values, or none."""
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(DRAWS):
        sizes = rng.integers(0, 9, size=60)
        of_prompts = rng.normal(0.3, 1.0, size=60)
        groups = [rng.normal(mean, 0.5, size=size) for mean, size in zip(of_prompts, sizes, strict=True)]
        estimate = clustered_mean(groups)  # type: ignore[arg-type]
        assert estimate is not None
        covered += estimate.low <= 0.3 <= estimate.high
    assert 0.94 <= covered / DRAWS <= 0.96


def test_an_interval_of_samples_as_if_they_were_independent_would_be_too_narrow() -> None:
    answers = correct_answers(np.random.default_rng(3), 100, 16, 0.5, 0.6)
    estimate = clustered_mean(answers)  # type: ignore[arg-type]
    alone = clustered_mean(answers.reshape(-1, 1))  # type: ignore[arg-type]
    assert estimate is not None and alone is not None
    assert estimate.mean == alone.mean
    assert estimate.high - estimate.low > 2 * (alone.high - alone.low)


@pytest.mark.parametrize(
    ("groups", "low", "high"),
    [
        ([[0.0]] * 20, 0.0, 0.18),  # nothing is right: at most one in six prompts may be
        ([[1.0, 1.0]] * 20, 0.82, 1.0),
        ([[0.5]] * 20, 0.5, 0.5),
    ],
)
def test_intervals_without_spread(groups: list[list[float]], low: float, high: float) -> None:
    estimate = clustered_mean(groups)
    assert estimate is not None
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.005)


def test_an_interval_of_rates_stays_between_0_and_1() -> None:
    found = clustered_mean([[1.0], [0.75], [1.0], [0.0]])
    assert found is not None and found.high == 1.0 and 0.0 <= found.low < found.mean
    beyond = clustered_mean([[1.0], [0.75], [1.5], [0.0]])
    assert beyond is not None and beyond.high > 1.5, "rewards above 1 are no rates"


def test_what_has_no_interval() -> None:
    assert clustered_mean([[], []]) is None
    estimate = clustered_mean([[], [1.0, 0.0]])
    assert estimate is not None
    assert (estimate.mean, estimate.prompts, estimate.samples) == (0.5, 1, 2)
    assert math.isnan(estimate.low)
    assert paired_difference([[], [1.0]], [[1.0], []]) is None


@pytest.mark.parametrize(("prompts", "samples"), [(40, 1), (100, 4), (500, 1)])
def test_equal_models_differ_in_5_percent_of_the_tests(prompts: int, samples: int) -> None:
    rng = np.random.default_rng(11)
    found = covered = 0
    for _ in range(DRAWS):
        chances = rng.beta(1.0, 2.0, size=(prompts, 1))
        first, second = ((rng.random((prompts, samples)) < chances).astype(np.float64) for _ in range(2))
        difference = paired_difference(first, second)  # type: ignore[arg-type]
        assert difference is not None
        found += difference.p_value < 0.05
        covered += difference.low <= 0 <= difference.high
    assert 0.04 <= found / DRAWS <= 0.06
    assert 0.94 <= covered / DRAWS <= 0.96


def test_the_detectable_difference_is_found_in_four_of_five_tests() -> None:
    rng = np.random.default_rng(13)
    prompts, samples = 200, 2
    size = detectable_difference(prompts, samples)
    found = 0
    for _ in range(DRAWS):
        first = (rng.random((prompts, samples)) < 0.5 - size / 2).astype(np.float64)
        second = (rng.random((prompts, samples)) < 0.5 + size / 2).astype(np.float64)
        difference = paired_difference(first, second)  # type: ignore[arg-type]
        assert difference is not None
        found += difference.p_value < 0.05
    assert 0.78 <= found / DRAWS <= 0.83


def test_few_prompts_that_all_differ_prove_little() -> None:
    difference = paired_difference([[0.0]] * 3, [[1.0]] * 3)
    assert difference is not None
    assert (difference.mean, difference.p_value) == (1.0, 0.25)


def test_prompts_without_a_finished_sample_are_left_out_of_a_comparison() -> None:
    difference = paired_difference([[1.0, 0.0], [], [0.0]], [[1.0], [1.0], [0.0]])
    assert difference is not None
    assert (difference.mean, difference.prompts, difference.left_out) == (0.25, 2, 1)


@pytest.mark.parametrize(
    ("answers", "passed", "chance"),
    [
        ("aab", (1, 1, 0), 1.0),
        ("abb", (1, 0, 0), 0.0),
        ("ab", (1, 0), 0.5),
        ("aaa", (1, 1, 0), 2 / 3),  # the reward looks at more than the answer
    ],
)
def test_majority(answers: str, passed: tuple[bool, ...], chance: float) -> None:
    assert majority(answers, passed) == pytest.approx(chance)
