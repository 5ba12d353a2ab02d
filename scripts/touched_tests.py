"""Chooses the tests of `make check`: those of what changed, as many as two cores run in a minute.

Prints paths for pytest in this order: test files that changed, test files that import a changed module, and
a fixed set that covers specs, commands, losses, the loop and the page. `tests/durations.json` has the seconds
of each test file, the slowest first; `make durations` writes it after a run of `make test`, which ends with
a list of the files that take longer than it says.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
BUDGET_SECONDS = 100.0
"""Seconds of tests, added up over the two processes of `make check`."""
GROWTH, LEAST_SECONDS = 1.5, 10.0
"""A file has grown when it takes this many times what it took, and this many seconds more."""
UNKNOWN_SECONDS = 2.0
"""Assumed for a test file that has not been measured."""
FIXED = (
    "tests/specs/test_recipes.py",
    "tests/specs/test_broken.py",
    "tests/cli/test_spec_commands.py",
    "tests/plugins/algorithms/test_algorithm_formulas.py",
    "tests/runner/job/test_loop.py",
    "tests/runner/batches/test_packing.py",
    "tests/runner/view/test_page_source.py",
)
"""Test files that run after every change."""


def main(arguments: list[str]) -> None:
    """Prints the chosen test files, or what has grown, or records the seconds of `--record REPORT.xml …`."""
    if arguments[:1] in (["--record"], ["--compare"]):
        seconds = recorded(ElementTree.parse(path).getroot() for path in arguments[1:])
        if arguments[0] == "--record":
            DURATIONS.write_text(json.dumps(seconds, indent=1) + "\n")
        else:
            print(comparison(seconds, json.loads(DURATIONS.read_text())))
        return
    tests = {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("test_*.py")}
    imports = {name: imported_modules(path.read_text()) for name, path in tests.items()}
    chosen = choose(changed_files(), imports, json.loads(DURATIONS.read_text()))
    print("\n".join(chosen))


def choose(
    changed: Iterable[str], imports: Mapping[str, set[str]], seconds: Mapping[str, float]
) -> list[str]:
    """Returns the test files to run, the most telling first, within the budget.

    `changed`: paths of changed files; `imports`: the modules that each test file imports; `seconds`: how long
    each test file takes. A test file that changed runs whatever it costs.
    """
    changed = set(changed)
    modules = {path.removesuffix(".py").replace("/", ".") for path in changed if path.endswith(".py")}
    edited = sorted(changed & imports.keys())
    touched = sorted(
        (name for name, names in imports.items() if names & modules),
        key=lambda name: (-len(imports[name] & modules), seconds.get(name, UNKNOWN_SECONDS)),
    )
    chosen: list[str] = []
    spent = 0.0
    for name in dict.fromkeys([*edited, *touched, *FIXED]):
        cost = seconds.get(name, UNKNOWN_SECONDS)
        if name in edited or spent + cost <= BUDGET_SECONDS:
            chosen.append(name)
            spent += cost
    return chosen


def imported_modules(source: str) -> set[str]:
    """Returns the modules that a file imports anywhere; `from a import b` may import a.b."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def changed_files() -> list[str]:
    """Returns the files that differ from the branch that this work started from, untracked ones included."""
    main_branch = next(
        (name for name in ("origin/main", "main") if git("rev-parse", "--verify", name)), "HEAD"
    )
    base = git("merge-base", "HEAD", main_branch).strip() or "HEAD"
    return [
        *git("diff", "--name-only", "--diff-filter=d", base).splitlines(),
        *git("ls-files", "--others", "--exclude-standard").splitlines(),
    ]


def git(*arguments: str) -> str:
    """Returns what a git command prints; nothing where it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def recorded(reports: Iterable[ElementTree.Element]) -> dict[str, float]:
    """Returns the seconds of every test file in pytest's JUnit reports, the slowest first."""
    seconds: Counter[str] = Counter()
    for report in reports:
        for case in report.iter("testcase"):
            seconds[file_of(case.attrib["classname"])] += float(case.attrib["time"])
    return {name: round(spent, 1) for name, spent in seconds.most_common() if spent >= 0.1}


def comparison(seconds: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Returns the sum of the seconds of test files, and the files that have grown, for people to read.

    Every file takes longer on a busy machine, so each is compared after the usual ratio of all.
    """
    known = [seconds[name] / before[name] for name in seconds if before.get(name, 0.0) >= 1.0]
    usual = median(known) if known else 1.0
    lines = [
        f"the tests took {sum(seconds.values()):.0f} s, in tests/durations.json {sum(before.values()):.0f} s"
    ]
    for name, spent in seconds.items():
        expected = usual * before.get(name, 0.0)
        if spent > GROWTH * expected and spent > expected + LEAST_SECONDS:
            lines.append(f"  {name}: {spent:.0f} s, expected {expected:.0f} s")
    return "\n".join(lines)


def file_of(classname: str) -> str:
    """Returns the file of a test by its dotted name, which may end with a class."""
    parts = classname.split(".")
    while parts[:-1] and not parts[-1].startswith("test_"):
        parts.pop()
    return "/".join(parts) + ".py"


if __name__ == "__main__":
    main(sys.argv[1:])
