"""Which groups the filters keep."""

from typing import Any

import pytest

from rlrun.plugins.registry import PluginError, build, load, names
from rlrun.plugins.testing import check_filter, group
from rlrun.plugins.types import Drop, Mask, Prompt, Row, Status


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([1, 0, 0], None),
        ([1, 1 + 1e-5], None),
        ([1, 1 + 1e-7], "all_1"),
        ([0, 0], "all_0"),
        ([0.5], "all_0.5"),
        ([-1, -1, -1], "all_-1"),
    ],
)
def test_nonzero_std(rewards: list[float], reason: str | None) -> None:
    (verdict,) = check_filter("nonzero_std", {}, [group(rewards)])
    assert (verdict.reason if verdict else None) == reason


def test_nonzero_std_says_whether_its_verdict_may_be_overruled() -> None:
    assert build("filters", "nonzero_std", {"keep_when_short": True}).keep_when_short
    assert not build("filters", "nonzero_std", {}).keep_when_short


@pytest.mark.parametrize(
    ("params", "reasons"),
    [
        ({"low": 0.25}, ["low", None, None]),
        ({"high": 0.75}, [None, None, "high"]),
        ({"low": 0.5, "high": 0.5}, ["low", None, "high"]),
    ],
)
def test_reward_range(params: dict[str, Any], reasons: list[str | None]) -> None:
    verdicts = check_filter("reward_range", params, [group([0, 0]), group([1, 0]), group([1, 1])])
    assert [verdict and verdict.reason for verdict in verdicts] == reasons


def test_an_execution_counts_once_however_many_samples_it_has() -> None:
    """One of two executions is solved, by the last of its three samples."""
    fan_out = group([0.5, 0.5, 1, 0])
    for number, sample in enumerate(fan_out.samples):
        sample.execution_id = "0-0" if number < 3 else ""
    assert check_filter("reward_range", {"low": 0.5, "high": 0.5}, [fan_out]) == [None]
    solved = group([0, 1, 0, 1])
    for number, sample in enumerate(solved.samples):
        sample.execution_id = f"0-{number // 2}"
    assert check_filter("online_difficulty", {"window": 1}, [solved]) == [Drop("always")]


SUMMED = [0.6 + 0.3 + 0.1, 1 - 0.9, 0.1 + 0.2]
"""A little below 1, a little below 0.1, a little above 0.3."""


def test_what_only_rounding_keeps_from_a_bound_reaches_it() -> None:
    near = [group([reward] * 2) for reward in SUMMED]
    bounds = [1.0, 0.1, 0.3]
    for one, bound in zip(near, bounds, strict=True):
        assert check_filter("reward_range", {"low": bound, "high": bound}, [one]) == [None]
        solved = {"solved": bound, "window": 1}
        assert check_filter("online_difficulty", solved, [one]) == [Drop("always")]


@pytest.mark.parametrize(("share", "samples"), [(0.55, 20), (0.57, 100)])
def test_a_share_of_samples_is_not_missed_by_rounding(share: float, samples: int) -> None:
    """0.55 * 20 is a little above 11 in floats, 0.57 * 100 a little below 57."""
    some = group([0.0] * samples)
    for sample in some.samples[: round(share * samples)]:
        sample.status, sample.text = Status.TRUNCATED, "again " * 50
    assert check_filter("truncated", {"max_share": share}, [some]) == [None]
    assert check_filter("repetition", {"samples": share}, [some]) == [Drop("repetition")]


@pytest.mark.parametrize(("max_share", "reasons"), [(0, [None, "truncated"]), (0.5, [None, None])])
def test_truncated(max_share: float, reasons: list[str | None]) -> None:
    some = group([1, 0])
    some.samples[0].status = Status.TRUNCATED
    verdicts = check_filter("truncated", {"max_share": max_share}, [group([1, 0]), some])
    assert [verdict and verdict.reason for verdict in verdicts] == reasons


@pytest.mark.parametrize(
    ("params", "reasons"),
    [
        ({"min_tokens": 3}, ["short", None]),
        ({"max_tokens": 3}, [None, "long"]),
        ({"min_tokens": 4}, ["short", None]),
        ({"min_tokens": 1, "max_tokens": 2}, [None, "long"]),
    ],
)
def test_length(params: dict[str, Any], reasons: list[str | None]) -> None:
    groups = [group([1, 0], lengths=[1, 3]), group([1, 0], lengths=[3, 5])]
    assert [verdict and verdict.reason for verdict in check_filter("length", params, groups)] == reasons


@pytest.mark.parametrize("name", names("filters"))
def test_every_filter_keeps_the_contract(name: str) -> None:
    params = getattr(load("filters", name), "example", {})
    check_filter(name, params, [group([1, 0, 0]), group([0.5]), group([1, 1], lengths=[0, 0])])


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("reward_range", {"low": 1, "high": 0}, r"low \(1\) is above high \(0\)"),
        ("length", {"min_tokens": 5, "max_tokens": 4}, r"min_tokens \(5\) is above max_tokens \(4\)"),
        ("truncated", {"max_share": 2}, "max_share"),
        ("truncated", {"max_share": 1}, "max_share"),
        ("reward_range", {}, "every group would be kept"),
        ("length", {"single": "mask"}, "needs min_tokens or max_tokens"),
        ("repetition", {"single": "drop", "samples": 0.2}, "samples has no effect"),
    ],
)
def test_wrong_parameters_are_named(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("filters", name, params)


def test_repetition_drops_groups_that_repeat_themselves() -> None:
    looping, varied = "again and again " * 30, " ".join(map(str, range(60)))
    groups = []
    for texts in ([looping, looping], [looping, varied], [varied, varied]):
        one = group([1.0, 0.0])
        for sample, text in zip(one.samples, texts, strict=True):
            sample.text = text
        groups.append(one)
    reasons = [verdict and verdict.reason for verdict in check_filter("repetition", {}, groups)]
    assert reasons == ["repetition", "repetition", None]
    stricter = check_filter("repetition", {"samples": 1.0}, groups)
    assert [verdict and verdict.reason for verdict in stricter] == ["repetition", None, None]


@pytest.mark.parametrize(("repeated", "words"), [(1, 10), (1, 5), (3, 10), (7, 10)])
def test_a_share_of_repetitions_is_not_missed_by_rounding(repeated: int, words: int) -> None:
    one = group([1.0, 0.0])
    one.samples[0].text = "again " * (repeated + 1) + " ".join(map(str, range(words - repeated - 1)))
    params = {"ngram": 1, "share": repeated / words, "single": "drop"}
    assert check_filter("repetition", params, [one]) == [Drop("repetition", (0,))]


@pytest.mark.parametrize(
    ("single", "verdict"), [("drop", Drop("repetition", (0,))), ("mask", Mask("repetition", (0,)))]
)
def test_single_responses_that_repeat_themselves_are_dropped_or_masked(
    single: str, verdict: Drop | Mask
) -> None:
    one = group([1.0, 0.0])
    one.samples[0].text = "again and again " * 30
    assert check_filter("repetition", {"single": single}, [one]) == [verdict]


def test_single_responses_beyond_the_range_of_lengths_are_dropped_or_masked() -> None:
    one = group([1, 0, 0], lengths=[1, 3, 9])
    params = {"min_tokens": 2, "max_tokens": 5}
    assert check_filter("length", {**params, "single": "drop"}, [one]) == [Drop("length", (0, 2))]
    assert check_filter("length", {**params, "single": "mask"}, [one]) == [Mask("length", (0, 2))]


@pytest.mark.parametrize(
    ("window", "visits", "reasons"),
    [
        (1, ["11", "10", "00"], ["always", None, "never"]),
        (2, ["11", "11", "11", "10", "11"], [None, "always", "always", None, None]),
        (2, ["00", "11", "00", "00"], [None, None, None, "never"]),
        (3, ["10", "10", "10"], [None, None, None]),
    ],
)
def test_prompts_solved_always_or_never_over_their_last_visits_are_dropped(
    window: int, visits: list[str], reasons: list[str | None]
) -> None:
    groups = [group([float(reward) for reward in rewards]) for rewards in visits]
    verdicts = check_filter("online_difficulty", {"window": window}, groups)
    assert [verdict and verdict.reason for verdict in verdicts] == reasons


def test_every_prompt_has_visits_of_its_own() -> None:
    one, other = group([1, 1]), group([1, 1])
    other.prompt = Prompt(Row("1", "another"), 1, one.prompt.tokens)
    verdicts = check_filter("online_difficulty", {"window": 2}, [one, other, one])
    assert verdicts == [None, None, Drop("always")]
