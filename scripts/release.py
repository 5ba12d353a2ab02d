"""Builds a release in dist/ and tries it as a user would: `python -m scripts.release [PYTHON …]`.

dist/ gets the wheel, the source archive, and the list of what the wheel installs (CycloneDX). Each PYTHON,
such as python3.12, gets a fresh environment in build/release. There, outside of this checkout, the light
install reads the quickstart's spec, and the whole install runs it. What that took, and what was learned, is
printed as JSON.

`python -m scripts.release --date-changelog VERSION` only gives the changelog's Unreleased section its number;
`--notes VERSION` only prints the changelog's section of that version.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
ENVIRONMENTS = ROOT / "build" / "release"
TOOLS = ("build", "twine", "cyclonedx-bom")
UNRELEASED = "## Unreleased"
HELD_OUT = "eval/held-out/pass@1"
"""The metric of the quickstart that shows what it learned."""
OUTSIDE_OF_THE_WHEEL = ("tests/", "benchmarks/", "docs/", "page/", "scripts/")


def main() -> None:
    """Builds, checks and tries the release, or dates the changelog."""
    parser = argparse.ArgumentParser(description="Build a release in dist/ and try it in fresh environments.")
    parser.add_argument("pythons", nargs="*", help="interpreters to try, such as python3.12")
    parser.add_argument(
        "--date-changelog", metavar="VERSION", help="only give Unreleased this version and today"
    )
    parser.add_argument(
        "--notes", metavar="VERSION", help="only print the changelog's section of this version"
    )
    arguments = parser.parse_args()
    changelog = ROOT / "CHANGELOG.md"
    if arguments.date_changelog:
        today = datetime.date.today()
        changelog.write_text(dated_changelog(changelog.read_text(), arguments.date_changelog, today))
        return
    if arguments.notes:
        print(section_of(changelog.read_text(), arguments.notes))
        return
    tools = new_environment("tools", sys.executable)
    install(tools, *TOOLS)
    wheel = build(tools)
    tried = [try_wheel(wheel, python) for python in arguments.pythons or [sys.executable]]
    write_bill_of_materials(tools, ENVIRONMENTS / tried[0]["python"])
    print(json.dumps({"wheel": wheel.name, "bytes": wheel.stat().st_size, "tried": tried}, indent=1))


def dated_changelog(text: str, version: str, date: datetime.date) -> str:
    """Returns the changelog with what was unreleased under `version`, below an empty Unreleased section."""
    if text.count(f"{UNRELEASED}\n") != 1:
        raise SystemExit(f"CHANGELOG.md must have one line {UNRELEASED!r}")
    if f"\n## {version} " in text:
        raise SystemExit(f"CHANGELOG.md has a section {version} already")
    return text.replace(f"{UNRELEASED}\n", f"{UNRELEASED}\n\n## {version} - {date.isoformat()}\n")


def section_of(text: str, version: str) -> str:
    """Returns what the changelog says of one version, without its title."""
    sections = re.split(r"^## (\S+).*\n", text, flags=re.MULTILINE)
    bodies = dict(zip(sections[1::2], sections[2::2], strict=True))
    if version not in bodies:
        raise SystemExit(f"CHANGELOG.md has no section {version}: make it with --date-changelog {version}")
    return bodies[version].strip()


def build(tools: Path) -> Path:
    """Builds both archives and returns the wheel, after it was compared with the files that git keeps."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(tools / "bin/python", "-m", "build", "--outdir", DIST, ROOT)
    run(tools / "bin/twine", "check", "--strict", *sorted(DIST.iterdir()))
    (wheel,) = DIST.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.namelist()
    kept = subprocess.check_output(["git", "ls-files", "rlrun"], cwd=ROOT, text=True).splitlines()
    problems = wheel_problems(packed, kept)
    if problems:
        raise SystemExit("\n".join(problems))
    return wheel


def wheel_problems(packed: Iterable[str], kept: Iterable[str]) -> list[str]:
    """Returns a sentence for each file that a wheel lacks or should not hold; `kept`: those of git."""
    packed = set(packed)
    missing = [f"the wheel lacks {name}" for name in sorted(set(kept) - packed)]
    strays = [f"the wheel holds {name}" for name in sorted(packed) if name.startswith(OUTSIDE_OF_THE_WHEEL)]
    return missing + strays


def try_wheel(wheel: Path, python: str) -> dict[str, object]:
    """Installs the wheel into a fresh environment, runs the quickstart there, and returns what that took."""
    version = subprocess.check_output(
        [python, "-c", "import platform; print(platform.python_version())"], text=True
    ).strip()
    environment = new_environment(version, python)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as elsewhere:
        with timed(seconds, "light install"):
            install(environment, wheel)
        rlrun = environment / "bin/rlrun"
        for command in ("--version", "validate quickstart", "plan quickstart", "init first.toml"):
            run(rlrun, *command.split(), folder=elsewhere)
        with timed(seconds, "install with [run]"):
            install(environment, f"{wheel}[run]")
        with timed(seconds, "quickstart"):
            run(rlrun, "launch", "quickstart", folder=elsewhere)
        accuracies = held_out_accuracies(Path(elsewhere, "runs/quickstart/metrics.jsonl").read_text())
    if accuracies[-1] <= accuracies[0]:
        raise SystemExit(f"Python {version}: the quickstart learned nothing: {accuracies}")
    return {"python": version, "seconds": seconds, "held-out accuracy": [accuracies[0], accuracies[-1]]}


def held_out_accuracies(metrics: str) -> list[float]:
    """Returns the accuracies of all evaluations in the text of a run's metrics.jsonl, in order."""
    rows = (json.loads(line) for line in metrics.splitlines())
    return [row[HELD_OUT] for row in rows if HELD_OUT in row]


def write_bill_of_materials(tools: Path, environment: Path) -> None:
    """Writes what the whole install brought, with versions and licences, beside the archives."""
    target = DIST / "rlrun.cdx.json"
    run(tools / "bin/cyclonedx-py", "environment", "--output-file", target, environment / "bin/python")


def new_environment(name: str, python: str) -> Path:
    """Returns the folder of a new, empty virtual environment of `python`."""
    folder = ENVIRONMENTS / name
    run(python, "-m", "venv", "--clear", folder)
    return folder


def install(environment: Path, *packages: str | Path) -> None:
    """Installs packages with the environment's own pip."""
    run(environment / "bin/pip", "install", "--quiet", *packages)


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Notes under `name` how long the block took."""
    begin = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - begin, 1)


def run(*command: str | Path, folder: str | Path = ROOT) -> None:
    """Runs a command in a folder, with its output on stderr and nothing of this checkout on its path."""
    surroundings = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    subprocess.run(
        [str(part) for part in command], cwd=folder, env=surroundings, stdout=sys.stderr, check=True
    )


if __name__ == "__main__":
    main()
