"""Every broken spec in broken/*.txt is rejected with exactly the report below it.

A case is a name, a spec, and the report that `rlrun validate` prints about it:

    === steps_of_zero
    [trainer]
    steps = 0
    ---
    spec.toml:2:9: trainer.steps: must be at least 1, found 0
      2 | steps = 0
        |         ^

The spec is merged into base.toml, unless its heading says `(without base.toml)`. The report ends each problem
that has a suggestion with `[suggestion: ...]`, which `rlrun validate --json` prints. `/specs` and `/rlrun`
stand for the folders of the specs and of the package.

After an intended change of a message, write the new reports and review them with `git diff`:

    .venv/bin/python -m tests.specs.test_broken
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest

import rlrun
from rlrun.plugins import registry
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems.findings import Problem, SpecError

HERE = Path(__file__).parent
FILES = sorted((HERE / "broken").glob("*.txt"))
PACKAGE = Path(rlrun.__file__).parent
WITHOUT_BASE = " (without base.toml)"
CASE = re.compile(
    r"^=== (?P<heading>.+)\n(?P<spec>(?:.*\n)*?)---\n(?P<report>(?:.*\n)*?)(?:\n(?====)|\Z)", re.M
)


@dataclass(frozen=True)
class Case:
    heading: str
    """The name, with WITHOUT_BASE for a whole spec."""
    spec: str
    report: str

    @property
    def name(self) -> str:
        return self.heading.removesuffix(WITHOUT_BASE)

    def __str__(self) -> str:
        return f"=== {self.heading}\n{self.spec}---\n{self.report}"


def read_cases(file: Path) -> list[Case]:
    cases = [Case(**match.groupdict()) for match in CASE.finditer(file.read_text("utf-8"))]
    assert as_text(cases) == file.read_text("utf-8"), f"{file} has text that belongs to no case"
    return cases


def as_text(cases: list[Case]) -> str:
    return "\n".join(map(str, cases))


def report_on(case: Case, folder: Path) -> str:
    """Returns the report on a case whose spec refers to the files of `folder`."""
    spec = folder / "spec.toml"
    spec.write_text(case.spec, "utf-8")
    base = [] if case.heading.endswith(WITHOUT_BASE) else [folder / "base.toml"]
    with chdir(folder), pytest.raises(SpecError) as caught:
        load_checked_spec([*base, spec])
    report = ""
    for problem in caught.value.problems:
        assert_underlines_its_line(problem, folder)
        report += lines_of(problem)
    return report.replace(str(folder), "/specs").replace(str(PACKAGE), "/rlrun")


def lines_of(problem: Problem) -> str:
    suggestion = f"\n  [suggestion: {problem.suggestion}]" if problem.suggestion else ""
    return f"{problem}{suggestion}\n"


def assert_underlines_its_line(problem: Problem, folder: Path) -> None:
    assert problem.source_line in (folder / problem.file).read_text("utf-8")
    assert problem.column + problem.width <= max(len(problem.source_line), problem.column) + 1


def copy_referenced_files(folder: Path) -> None:
    """Copies what the specs refer to, next to which each case's spec is written."""
    ignored = shutil.ignore_patterns("*.py", "broken", "__pycache__")
    shutil.copytree(HERE, folder, ignore=ignored, dirs_exist_ok=True)


@contextmanager
def only_shipped_plugins() -> Iterator[None]:
    """Hides installed plugin packages: reports list the plugins that exist."""
    shipped = [metadata.distribution("rlrun")]
    registry._announced.cache_clear()
    with patch("rlrun.plugins.registry.metadata.distributions", lambda: shipped):
        yield
    registry._announced.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("specs")
    copy_referenced_files(folder)
    with only_shipped_plugins():
        yield folder


def all_cases() -> Iterator[Case]:
    for file in FILES:
        yield from read_cases(file)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_report_on_broken_spec(case: Case, folder: Path) -> None:
    assert report_on(case, folder) == case.report


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names) >= 254


def write_reports() -> None:
    """Replaces every expected report by the one that rlrun prints now."""
    with TemporaryDirectory() as name, only_shipped_plugins():
        folder = Path(name).resolve()
        copy_referenced_files(folder)
        for file in FILES:
            cases = [replace(case, report=report_on(case, folder)) for case in read_cases(file)]
            file.write_text(as_text(cases), "utf-8")


if __name__ == "__main__":
    write_reports()
