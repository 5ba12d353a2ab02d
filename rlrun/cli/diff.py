"""`rlrun diff`: what differs between two specs, locks or runs, value by value."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rlrun.cli.arguments import AsJson, RunsDir, load

_SIDE = "A spec, a recipe's name, a spec.lock.json, a run's folder or name."


def command(
    before: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help=_SIDE)],
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show what differs between two specs, locks or runs.

    Resolved values are compared: how they are written, and where, does not count.
    """
    from rlrun.specs.reading.differences import find_differences

    old, new = (_document(each, runs_dir) for each in (before, after))
    if "spec" not in old or "spec" not in new:  # a lock has more to compare than a spec
        old, new = (each.get("spec", each) for each in (old, new))
    found = list(find_differences(old, new))
    if as_json:
        print(json.dumps([asdict(each) for each in found]))
        return
    print(*found, sep="\n") if found else print("no differences")


def _document(name: str, runs_dir: Path) -> dict[str, Any]:
    """A lock without what differs between any two launches, or a spec's values."""
    path = Path(name)
    for lock in (path / "spec.lock.json", runs_dir / name / "spec.lock.json"):
        if lock.is_file():
            path = lock
    if path.suffix == ".json":
        return _lock(path)
    return load([name], None).spec.model_dump(mode="json")


def _lock(path: Path) -> dict[str, Any]:
    from rlrun.runner.records.lock import read_lock

    locked = read_lock(path)
    return {name: value for name, value in locked.items() if name not in ("sources", "platform")}
