"""`rlrun diff`: compares two specs, locks or runs, value by value, and what two runs reached."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rlrun.cli.arguments import AsJson, RunsDir, load
from rlrun.cli.run_states import run_of
from rlrun.runner.host.printed_text import one_line, print_text

_SIDE = "A spec, a recipe's name, a spec.lock.json, a run's folder or name."


def command(
    before: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help=_SIDE)],
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show what differs between two specs, locks or runs, and the results of two runs side by side.

    Compares resolved values: it does not matter how, or in which file, a value is written.
    """
    from rlrun.specs.reading.differences import Difference, find_differences

    sides = (before, after)
    old, new = (_document(name, runs_dir) for name in sides)
    if "spec" not in old or "spec" not in new:  # a lock has more sections than a spec
        old, new = (document.get("spec", document) for document in (old, new))
    differences = list(find_differences(old, new))
    first, second = (_results(name, runs_dir) for name in sides)
    results = [
        Difference(name, first.get(name), second.get(name))
        for name in dict.fromkeys((*first, *second))
        if first and second
    ]
    if as_json:
        named = [{**asdict(result), "key": f"results.{result.key}"} for result in results]
        print(json.dumps([*map(asdict, differences), *named]))
        return
    print_text(*differences, sep="\n") if differences else print_text("no differences")
    if results:
        _print_results(sides, [(result.key, result.before, result.after) for result in results])


def _document(name: str, runs_dir: Path) -> dict[str, Any]:
    """Returns a lock, without the entries that differ between any two launches, or a spec's values."""
    run = run_of(name, runs_dir)
    path = Path(name) if run is None else run.lock
    if path.suffix == ".json":
        return _lock(path)
    return load([name], None).spec.model_dump(mode="json")


def _lock(path: Path) -> dict[str, Any]:
    from rlrun.runner.records.lock import compared_values, read_lock

    return compared_values(read_lock(path))


def _results(name: str, runs_dir: Path) -> dict[str, float]:
    """Returns the results of a run; none for a spec, a lock, or a run without metrics."""
    from rlrun.runner.records.metrics_file import read_metrics, results_of

    run = run_of(name, runs_dir)
    return {} if run is None else results_of(read_metrics(run.metrics))


def _print_results(sides: tuple[str, str], rows: list[tuple[str, float | None, float | None]]) -> None:
    from rlrun.cli.output import plain_table, table_console

    table = plain_table("result", *map(one_line, sides))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *values in rows:
        table.add_row(one_line(name), *("" if value is None else f"{value:.4g}" for value in values))
    print_text()
    table_console().print(table)
