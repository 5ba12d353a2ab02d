"""Tests which tests `make check` runs (scripts/touched_tests.py), and what is said of how long tests take."""

import json
import re
from xml.etree import ElementTree

import pytest

from scripts.touched_tests import (
    BUDGET_SECONDS,
    DURATIONS,
    FIXED,
    ROOT,
    choose,
    comparison,
    imported_modules,
    recorded,
)

IMPORTS = {
    "tests/plugins/test_a.py": {"rlrun.plugins", "rlrun.plugins.a"},
    "tests/plugins/test_ab.py": {"rlrun.plugins.a", "rlrun.plugins.b"},
    "tests/runner/test_slow.py": {"rlrun.plugins.a"},
}
SECONDS = {"tests/runner/test_slow.py": BUDGET_SECONDS + 1}


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        pytest.param([], [], id="without a change, the fixed set"),
        pytest.param(["docs/a.md"], [], id="a page has no tests of its own"),
        pytest.param(["tests/plugins/test_a.py"], ["tests/plugins/test_a.py"], id="a changed test"),
        pytest.param(
            ["rlrun/plugins/a.py"],
            ["tests/plugins/test_a.py", "tests/plugins/test_ab.py"],
            id="tests that import the module, the slow test left out",
        ),
        pytest.param(
            ["rlrun/plugins/a.py", "rlrun/plugins/b.py"],
            ["tests/plugins/test_ab.py", "tests/plugins/test_a.py"],
            id="the test that imports more of the change comes first",
        ),
        pytest.param(
            ["tests/runner/test_slow.py"],
            ["tests/runner/test_slow.py"],
            id="a slow test that was edited runs",
        ),
    ],
)
def test_chosen_tests(changed: list[str], first: list[str]) -> None:
    chosen = choose(changed, IMPORTS, SECONDS)
    assert chosen[: len(first)] == first
    assert set(chosen[len(first) :]) <= set(FIXED)


def test_chosen_tests_fit_into_the_budget() -> None:
    many = {f"tests/test_{number}.py": {"rlrun.plugins.a"} for number in range(200)}
    chosen = choose(["rlrun/plugins/a.py"], many, dict.fromkeys(many, 1.0))
    assert len(chosen) == BUDGET_SECONDS


def test_imported_modules_include_submodules() -> None:
    source = "import rlrun.a\nfrom rlrun.b import c\ndef f():\n    from rlrun import d\n"
    assert imported_modules(source) == {"rlrun.a", "rlrun.b", "rlrun.b.c", "rlrun", "rlrun.d"}


def test_seconds_of_a_report_are_added_up_by_file() -> None:
    report = ElementTree.fromstring(
        '<testsuites><testsuite><testcase classname="tests.a.test_x" name="one" time="1.5"/>'
        '<testcase classname="tests.a.test_x.TestClass" name="two" time="2"/>'
        '<testcase classname="tests.test_y" name="three" time="0.25"/></testsuite></testsuites>'
    )
    assert recorded([report]) == {"tests/a/test_x.py": 3.5, "tests/test_y.py": 0.2}


def test_files_that_have_grown_are_listed_whatever_the_machine_does_meanwhile() -> None:
    before = {"tests/test_a.py": 10.0, "tests/test_b.py": 20.0, "tests/test_c.py": 30.0}
    twice = {"tests/test_a.py": 20.0, "tests/test_b.py": 40.0, "tests/test_c.py": 60.0}
    assert comparison(twice, before) == "the tests took 120 s, in tests/durations.json 60 s"
    lines = comparison(twice | {"tests/test_b.py": 90.0, "tests/test_new.py": 11.0}, before).splitlines()
    assert lines[1:] == [
        "  tests/test_b.py: 90 s, expected 40 s",
        "  tests/test_new.py: 11 s, expected 0 s",
    ]


LONGEST_FILE_SECONDS = 300
"""A longer file keeps one of two cores busy at the end: make its tests cheaper, or mark some `slow`."""


def test_make_test_takes_as_long_as_it_says() -> None:
    """Compares what was measured by `make durations`: who adds a minute says so in both places."""
    seconds = json.loads(DURATIONS.read_text())
    minutes = sum(seconds.values()) / 60 / 2
    for page in ("Makefile", "CONTRIBUTING.md"):
        [stated] = re.findall(r"about (\d+) minutes on two cores", (ROOT / page).read_text())
        assert 0.8 * int(stated) < minutes < 1.1 * int(stated), page
    assert max(seconds.values()) < LONGEST_FILE_SECONDS
