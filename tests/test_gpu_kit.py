"""The runner of benchmarks/gpu: no check stops the others, whatever it does."""

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as runner
from benchmarks.gpu.checks import CHECKS, TOTAL_SECONDS, UNPACK_SECONDS, Check
from benchmarks.gpu.results import Goal, Measurement, judge

PLANTED = "tests.planted_checks"


def test_no_check_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLOWNESS_OF_CPUS", 1)
    monkeypatch.setattr(runner, "MIN_SECONDS", 0.0)
    checks = (
        Check("failing", PLANTED, 60, ("misses its goal", "raises", "lacks something", "passes")),
        Check("dying", PLANTED, 60, ("passes", "dies")),
        Check("hanging", PLANTED, 3, ("hangs",)),
        Check("missing", "tests.no_such_module", 60),
        Check("last", PLANTED, 60, ("passes",)),
    )
    results = list(runner.run_all(checks, 600.0, tmp_path))
    assert [(result.check, result.case, result.status) for result in results] == [
        ("failing", "misses its goal", "failed"),
        ("failing", "raises", "error"),
        ("failing", "lacks something", "skipped"),
        ("failing", "passes", "passed"),
        ("dying", "passes", "passed"),
        ("dying", "dies", "error"),
        ("hanging", "hangs", "timeout"),
        ("missing", "", "error"),
        ("last", "passes", "passed"),
    ]
    errors = {result.case: result.error for result in results}
    assert errors["misses its goal"] == "missed: mfu >= 0.4"
    assert errors["raises"] == "RuntimeError: CUDA error: unknown error"
    assert "ended with exit code -9; these are its last words" in errors["dies"]
    assert "had not ended after 3 s" in errors["hangs"]
    assert "No module named 'tests.no_such_module'" in errors[""]


def test_checks_without_time_are_skipped(tmp_path: Path) -> None:
    [result] = runner.run_all((Check("late", PLANTED, 60),), 0.0, tmp_path)
    assert (result.status, result.error) == ("skipped", "no time is left")


def test_the_limits_of_a_bare_machine() -> None:
    assert sum(check.seconds for check in CHECKS if not check.beyond) + UNPACK_SECONDS <= TOTAL_SECONDS
    assert [check.beyond for check in CHECKS] == sorted(check.beyond for check in CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_case_exists(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(runner.__file__).parents[1]))
    cases = import_module(check.module).CASES
    assert set(check.cases) <= set(cases)
    assert all(any(name in other.cases or not other.cases for other in of(check.module)) for name in cases)


def of(module: str) -> list[Check]:
    return [check for check in CHECKS if check.module == module]


@pytest.mark.parametrize(
    ("figure", "status"), [(0.41, "passed"), (0.4, "passed"), (0.39, "failed"), (float("nan"), "failed")]
)
def test_goals(figure: float, status: str) -> None:
    measurement = Measurement({"mfu": figure}, (Goal("mfu", ">=", 0.4),))
    assert judge(measurement)[0] == status
