import json
import random
import zlib
from pathlib import Path

import numpy as np
import pytest

from rlrun.plugins.types import Group, Status, VersionSpan
from rlrun.runner.records.metrics import (
    execution_rewards,
    has_repetition,
    is_due,
    pass_rates,
    rollout_metrics,
    statistics,
)
from tests.runner.loop_fakes import prompt, sample

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "schedule_metric_vectors.jsonl")
    .read_text()
    .splitlines()
]


def rows(function: str) -> list[dict]:
    return [row for row in ROWS if row["fn"] == function]


@pytest.mark.parametrize("row", rows("compute_pass_rate"))
def test_pass_rates(row: dict) -> None:
    size = row["in"]["group_size"]
    rewards = np.reshape(row["in"]["rewards"], (-1, size)).tolist()
    assert pass_rates(rewards) == pytest.approx(row["out"])


@pytest.mark.parametrize("row", rows("compute_statistics"))
def test_statistics(row: dict) -> None:
    assert statistics(row["in"]["values"]) == row["out"]


@pytest.mark.parametrize("row", rows("has_repetition"))
def test_repetition(row: dict) -> None:
    piece, times = row["in"]["text"].split("*")
    assert has_repetition(piece.strip("'") * int(times)) is row["out"]


@pytest.mark.parametrize("row", rows("should_run_periodic_action"))
def test_intervals(row: dict) -> None:
    assert is_due(row["in"]["rollout_id"], row["in"]["interval"]) is row["out"]


def test_varied_or_short_text_is_no_repetition() -> None:
    assert not has_repetition("ab" * 5000)
    assert not has_repetition(" ".join(str(n * n) for n in range(4000)))


def test_pass_rates_of_uneven_groups() -> None:
    assert pass_rates([[1, 0], [1, 1, 1, 1], []]) == {"pass@1": 0.75, "pass@2": 1.0, "pass@4": 1.0}


def test_a_reward_that_only_rounding_keeps_from_the_threshold_passes() -> None:
    assert pass_rates([[0.6 + 0.3 + 0.1, 0.5]], threshold=1.0) == {"pass@1": 0.5, "pass@2": 1.0}


def test_rollout_metrics() -> None:
    groups = [
        Group(prompt(0), [sample(0, 0, 1.0, 4), sample(0, 1, 0.0, 2, status=Status.TRUNCATED)]),
        Group(prompt(1), [sample(1, 0, 0.5, 2), sample(1, 1, 0.5, 4, versions=(VersionSpan(2, 0, 4),))]),
        Group(prompt(2), [sample(2, 0, float("nan"), status=Status.FAILED)]),
        Group(prompt(3), [sample(3, 0, float("nan"), 9, status=Status.ABORTED)]),
    ]
    metrics = rollout_metrics(groups, version=3)
    assert metrics["rollout/reward/mean"] == 0.5
    assert metrics["rollout/reward/std"] == pytest.approx(np.std([1, 0, 0.5, 0.5]))
    assert metrics["rollout/response_len/mean"] == 3
    assert metrics["rollout/response_len/max"] == 4
    assert metrics["rollout/truncated_ratio"] == 0.25
    assert metrics["rollout/zero_std/count"] == 1
    assert metrics["rollout/log_probs"] == -1
    assert metrics["rollout/staleness/max"] == 3
    assert metrics["rollout/staleness/mean"] == pytest.approx((3 + 3 + 3 + 1) / 4)


def test_the_names_are_these_and_no_others() -> None:
    groups = [Group(prompt(0), [sample(0, 0, 1.0, 4), sample(0, 1, 0.0, 2)])]
    lengths = {f"response_len/{kind}" for kind in ("mean", "median", "max", "min")}
    rewards = {f"reward/{kind}" for kind in ("mean", "std", "min", "max")}
    names = {*rewards, *lengths, "truncated_ratio", "repetition_frac", "log_probs"}
    names |= {"pass@1", "pass@2", "zero_std/count", "staleness/mean", "staleness/max"}
    assert rollout_metrics(groups, version=3).keys() == {f"rollout/{name}" for name in names}


def test_a_sample_without_a_response_is_of_no_age() -> None:
    group = Group(prompt(0), [sample(0, 0, 1.0, 2), sample(0, 1, 0.0, 0, versions=())])
    assert rollout_metrics([group], version=3)["rollout/staleness/max"] == 3


def test_repetition_is_what_the_last_ten_thousand_characters_compress_more_than_tenfold() -> None:
    letters = "".join(random.Random(0).choices("abcdefgh", k=4000))
    verdicts = set()
    for count in range(1600, 2600, 20):
        text = letters[:count] + "a" * (10_001 - count)
        tail = text[-10_000:].encode()
        expected = 10_000 / len(zlib.compress(tail, 9)) > 10
        assert has_repetition(text) is expected
        verdicts.add(expected)
    assert verdicts == {False, True}


def test_no_samples_make_no_metrics() -> None:
    assert rollout_metrics([], version=0) == {"rollout/zero_std/count": 0}


def test_samples_without_a_reward_neither_pass_nor_fail() -> None:
    unscored = [Group(prompt(n), [sample(n, k, float("nan"), 2) for k in range(2)]) for n in range(2)]
    assert not [name for name in rollout_metrics(unscored, 0) if "reward" in name or "pass" in name]
    scored = [*unscored, Group(prompt(2), [sample(2, 0, 1.0), sample(2, 1, 0.5)])]
    metrics = rollout_metrics(scored, 0)
    assert (metrics["rollout/reward/mean"], metrics["rollout/pass@1"]) == (0.75, 0.5)


def test_an_execution_of_several_samples_counts_once() -> None:
    several = [sample(0, 0, 0.0, id="0-0.0", execution_id="0-0"), sample(0, 0, 1.0, execution_id="0-0")]
    group = Group(prompt(0), [*several, sample(0, 1, 0.0)])
    assert execution_rewards(group.samples) == [1.0, 0.0]
    assert rollout_metrics([group], 0)["rollout/pass@1"] == 0.5


def test_metrics_of_an_execution_do_not_depend_on_its_number_of_samples() -> None:
    def answer(number: int, part: int, reward: float, turns: int):
        return sample(
            *(0, number, reward),
            id=f"0-{number}.{part}",
            execution_id=f"0-{number}",
            rewards={"math": 2 * reward},
            info={"turns": turns},
        )

    few = [answer(0, 0, 1.0, 4), answer(1, 0, 0.0, 2)]
    many = [answer(0, 0, 0.3, 4), answer(0, 1, 0.0, 4), answer(0, 2, 1.0, 4), answer(1, 0, 0.0, 2)]
    compared = ("reward/", "rewards/", "pass@", "zero_std/", "info/")
    expected, metrics = (
        {
            name: value
            for name, value in rollout_metrics([Group(prompt(0), samples)], 0).items()
            if name.removeprefix("rollout/").startswith(compared)
        }
        for samples in (few, many)
    )
    assert metrics == expected
    assert metrics["rollout/reward/mean"] == metrics["rollout/pass@1"] == 0.5
    assert (metrics["rollout/reward/std"], metrics["rollout/rewards/math"]) == (0.5, 1.0)
    assert metrics["rollout/info/turns"] == 3.0


def test_numbers_that_the_rollout_noted_are_averaged() -> None:
    samples = [
        sample(0, 0, info={"turns": 1, "solved": True, "id": 10**400}),
        sample(0, 1, info={"turns": 4, "city": "Rome"}),
    ]
    metrics = rollout_metrics([Group(prompt(0), samples)], 0)
    assert {name: value for name, value in metrics.items() if "info" in name} == {
        "rollout/info/turns": 2.5,
        "rollout/info/solved": 1.0,
    }


def test_what_the_policy_was_given_does_not_count_in_its_log_probs() -> None:
    mask, log_probs = np.array([1, 0, 0, 1], np.float32), np.array([-2, 0, 0, -1], np.float32)
    several = sample(0, 0, length=4, loss_mask=mask, log_probs=log_probs)
    assert rollout_metrics([Group(prompt(0), [several])], 0)["rollout/log_probs"] == -1.5
