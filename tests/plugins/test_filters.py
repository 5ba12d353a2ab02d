"""Which groups the filters keep."""

from typing import Any

import pytest

from rlrun.plugins.registry import PluginError, build, names
from rlrun.plugins.testing import check_filter, group
from rlrun.plugins.types import Status


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
        ({}, [None, None, None]),
        ({"low": 0.25}, ["low", None, None]),
        ({"high": 0.75}, [None, None, "high"]),
        ({"low": 0.5, "high": 0.5}, ["low", None, "high"]),
    ],
)
def test_reward_range(params: dict[str, Any], reasons: list[str | None]) -> None:
    verdicts = check_filter("reward_range", params, [group([0, 0]), group([1, 0]), group([1, 1])])
    assert [verdict and verdict.reason for verdict in verdicts] == reasons


@pytest.mark.parametrize(("max_share", "reasons"), [(0, [None, "truncated"]), (0.5, [None, None])])
def test_truncated(max_share: float, reasons: list[str | None]) -> None:
    some = group([1, 0])
    some.samples[0].status = Status.TRUNCATED
    verdicts = check_filter("truncated", {"max_share": max_share}, [group([1, 0]), some])
    assert [verdict and verdict.reason for verdict in verdicts] == reasons


@pytest.mark.parametrize(
    ("params", "reasons"),
    [({}, [None, None]), ({"min_tokens": 3}, ["short", None]), ({"max_tokens": 3}, [None, "long"])],
)
def test_length(params: dict[str, Any], reasons: list[str | None]) -> None:
    groups = [group([1, 0], lengths=[1, 3]), group([1, 0], lengths=[3, 5])]
    assert [verdict and verdict.reason for verdict in check_filter("length", params, groups)] == reasons


@pytest.mark.parametrize("name", names("filters"))
def test_every_filter_keeps_the_contract(name: str) -> None:
    check_filter(name, {}, [group([1, 0, 0]), group([0.5]), group([1, 1], lengths=[0, 0])])


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("reward_range", {"low": 1, "high": 0}, r"low \(1\) is above high \(0\)"),
        ("length", {"min_tokens": 5, "max_tokens": 4}, r"min_tokens \(5\) is above max_tokens \(4\)"),
        ("truncated", {"max_share": 2}, "max_share"),
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
