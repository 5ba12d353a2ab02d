"""Outcomes of checks, and their page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.runner.audit.check import KEPT_VIOLATIONS, Check, Outcome
from rlrun.runner.audit.table import CHECKS
from rlrun.runner.audit.violation import NotChecked, Result, Violation

PAGE = Path(__file__).parents[3] / "docs" / "auditing.md"
CHECK = Check("mask", "error", "samples", "report it")


def results(*, good: int = 0, bad: int = 0, reason: str = "") -> Iterator[Result]:
    yield from (None for _ in range(good))
    yield from (Violation("wrong", step) for step in range(bad))
    if reason:
        raise NotChecked(reason)


@pytest.mark.parametrize(
    ("good", "bad", "reason", "status", "why"),
    [
        (3, 0, "", "passed", ""),
        (3, 1, "", "violated", ""),
        (0, 0, "", "not checked", "the run stores no samples"),
        (0, 0, "no tokenizer", "not checked", "no tokenizer"),
        (3, 0, "no tokenizer", "passed", "no tokenizer"),
        (0, 1, "no tokenizer", "violated", "no tokenizer"),
    ],
)
def test_what_was_not_inspected_has_not_passed(
    good: int, bad: int, reason: str, status: str, why: str
) -> None:
    outcome = Outcome(CHECK)
    outcome.take(results(good=good, bad=bad, reason=reason))
    assert (outcome.status, outcome.why_not) == (status, why)
    assert outcome.inspected == good + bad


def test_a_reason_is_named_once_and_all_violations_are_counted() -> None:
    outcome = Outcome(CHECK)
    for _ in range(2):
        outcome.take(results(bad=KEPT_VIOLATIONS, reason="no tokenizer"))
    assert outcome.why_not == "no tokenizer"
    assert outcome.num_violations == 2 * KEPT_VIOLATIONS
    assert len(outcome.violations) == KEPT_VIOLATIONS
    assert outcome.as_json()["violations"] == 2 * KEPT_VIOLATIONS


def test_a_place_names_step_samples_and_file() -> None:
    violation = Violation("wrong", 3, ("17-0", "17-1"), "rollouts/step-3.jsonl.zst:1")
    assert violation.place == "step 3, samples 17-0, 17-1, rollouts/step-3.jsonl.zst:1"
    assert Violation("wrong", file="spec.lock.json").place == "spec.lock.json"


def test_every_check_has_a_heading_in_this_order_with_its_severity() -> None:
    headings = re.findall(r"^## (\w+)\n(\w+)\.", PAGE.read_text(), re.MULTILINE)
    assert headings == [(check.name, check.severity.capitalize()) for check in CHECKS]


def test_every_check_inspects_samples_or_the_run() -> None:
    assert all((check.of_batch is None) != (check.of_run is None) for check in CHECKS)
