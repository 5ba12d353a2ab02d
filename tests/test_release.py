"""Tests what a release is checked for before it is tried (scripts/release.py)."""

import datetime

import pytest

from scripts.release import dated_changelog, held_out_accuracies, section_of, wheel_problems

CHANGELOG = """# Changelog

## Unreleased

- New.

## 0.1.0 - 2026-11-01

- Old.
"""


def test_what_was_unreleased_gets_the_version_and_the_date():
    dated = dated_changelog(CHANGELOG, "0.2.0", datetime.date(2026, 12, 1))
    assert dated.startswith("# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-12-01\n\n- New.\n")
    assert section_of(dated, "0.2.0") == "- New."
    assert section_of(dated, "0.1.0") == "- Old."
    assert section_of(dated, "Unreleased") == ""


def test_a_version_is_released_once():
    with pytest.raises(SystemExit, match=r"has a section 0\.1\.0 already"):
        dated_changelog(CHANGELOG, "0.1.0", datetime.date(2026, 12, 1))


def test_notes_of_a_version_without_a_section_name_the_cure():
    with pytest.raises(SystemExit, match=r"make it with --date-changelog 0\.3\.0"):
        section_of(CHANGELOG, "0.3.0")


def test_a_wheel_holds_the_files_of_the_package_and_no_tests():
    kept = ["rlrun/__init__.py", "rlrun/py.typed"]
    assert wheel_problems([*kept, "rlrun-0.1.0.dist-info/METADATA"], kept) == []
    assert wheel_problems(["rlrun/__init__.py", "tests/conftest.py"], kept) == [
        "the wheel lacks rlrun/py.typed",
        "the wheel holds tests/conftest.py",
    ]


def test_accuracies_come_from_the_steps_that_evaluate():
    metrics = '{"eval/held-out/pass@1": 0.2}\n{"step": 1}\n{"eval/held-out/pass@1": 0.9}\n'
    assert held_out_accuracies(metrics) == [0.2, 0.9]
