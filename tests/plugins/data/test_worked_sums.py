"""Demonstrations for chain_sum: right, in the declared mixture, and the same every time."""

import pytest

from rlrun.plugins.data.worked_sums import worked_steps
from rlrun.plugins.registry import PluginError
from rlrun.plugins.testing import check_data

SUMS = {"min_terms": 3, "max_terms": 5, "min_digits": 2, "max_digits": 2}


@pytest.mark.parametrize(
    ("expression", "steps"),
    [
        ("7", []),
        ("12 + 34 - 5", ["12 + 34 = 46", "46 - 5 = 41"]),
        ("3 - 9 + 1", ["3 - 9 = -6", "-6 + 1 = -5"]),
    ],
)
def test_steps_add_term_by_term(expression: str, steps: list[str]) -> None:
    assert worked_steps(expression) == steps


def test_every_demonstration_ends_in_the_right_answer() -> None:
    rows = check_data("worked_sums", {"size": 200, "seed": 7, "task_params": SUMS, "worked_share": 0.5})
    for row in rows:
        *steps, answer = row.response.split("\n")
        assert answer == f"<answer>{row.label}</answer>"
        assert not steps or steps[-1].endswith(f"= {row.label}")


def test_work_is_shown_first_and_then_by_its_share() -> None:
    rows = check_data("worked_sums", {"size": 1000, "worked_first": 400, "worked_share": 0.25})
    worked = ["=" in row.response for row in rows]
    assert all(worked[:400])
    assert 0.2 < sum(worked[400:]) / 600 < 0.3


def test_settings_that_the_task_does_not_take_are_refused() -> None:
    with pytest.raises(PluginError, match="does not take these settings"):
        check_data("worked_sums", {"task_params": {"terms": 3}})
