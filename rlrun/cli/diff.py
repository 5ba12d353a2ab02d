"""`rlrun diff`: compares two specs, locks or runs, value by value."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rlrun.cli.arguments import AsJson, RunsDir, load
from rlrun.runner.host.printed_text import print_text

_SIDE = "A spec, a recipe's name, a spec.lock.json, a run's folder or name."


def command(
    before: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help=_SIDE)],
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show what differs between two specs, locks or runs.

    Compares resolved values: it does not matter how, or in which file, a value is written.
    """
    from rlrun.specs.reading.differences import find_differences

    old, new = (_document(name, runs_dir) for name in (before, after))
    if "spec" not in old or "spec" not in new:  # a lock has more sections than a spec
        old, new = (document.get("spec", document) for document in (old, new))
    differences = list(find_differences(old, new))
    if as_json:
        print(json.dumps([asdict(difference) for difference in differences]))
        return
    print_text(*differences, sep="\n") if differences else print_text("no differences")


def _document(name: str, runs_dir: Path) -> dict[str, Any]:
    """Returns a lock, without the entries that differ between any two launches, or a spec's values."""
    path = Path(name)
    for lock in (path / "spec.lock.json", runs_dir / name / "spec.lock.json"):
        if lock.is_file():
            path = lock
    if path.suffix == ".json":
        return _lock(path)
    return load([name], None).spec.model_dump(mode="json")


def _lock(path: Path) -> dict[str, Any]:
    from rlrun.runner.records.lock import read_lock

    lock = read_lock(path)
    return {name: value for name, value in lock.items() if name not in ("sources", "platform", "engines")}
