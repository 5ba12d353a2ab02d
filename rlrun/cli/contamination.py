"""`rlrun contamination`: finds evaluation rows that are also rows for training."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli.arguments import AllowLocalPlugins, AsJson, Overrides, Profiles, Specs, load
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.printed_text import one_line, print_text

if TYPE_CHECKING:
    from rlrun.plugins.types import Row
    from rlrun.runner.prompts.contamination import Overlap, QuestionIndex
    from rlrun.specs.sections.data import DataSpec

_SHOWN = 5
"""Rows of one dataset that are printed; --json has all."""
_MAX_TEXT = 100


def command(
    specs: Specs,
    *,
    overrides: Overrides = None,
    profiles: Profiles = None,
    sequence: Annotated[
        int, typer.Option(min=2, help="Words in a row that count as known if a training row has them too.")
    ] = 8,
    as_json: AsJson = False,
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """Find rows of [[eval.datasets]] whose questions are also in [data].

    A row is found if a training row has the same question, or more than half of its words in sequences of
    --sequence words. Reads all rows, and needs no model. The exit code is 2 if rows were found.
    """
    from rlrun.cli.output import show_waiting
    from rlrun.runner.prompts.contamination import QuestionIndex

    spec = load(specs, overrides, profiles, planning=True, other_host=True).spec
    if not spec.eval.datasets:
        raise ValueError("the spec has no [[eval.datasets]] to compare with its [data]")
    with show_waiting("reading rows"):
        indices = {dataset.name: QuestionIndex(_rows(dataset), sequence) for dataset in spec.eval.datasets}
        count = 0
        for row in _rows(spec.data):
            count += 1
            for index in indices.values():
                index.look_up(row)
    found = {name: index.overlaps() for name, index in indices.items()}
    if as_json:
        print(json.dumps(_as_json(indices, found, count)))
    else:
        for name, overlaps in found.items():
            _print(name, len(indices[name]), overlaps, count)
    if any(found.values()):
        raise typer.Exit(ExitCode.WRONG)


def _rows(source: "DataSpec") -> Iterator["Row"]:
    """Yields the rows of a data source, without the broken ones."""
    from rlrun.plugins.registry import build

    rows = build("data", source.type, source.params)
    for number in range(len(rows)):
        try:
            row = rows[number]
        except ValueError:  # a launch counts broken rows (data.max_bad_share)
            continue
        yield row


def _as_json(
    indices: Mapping[str, "QuestionIndex"], found: Mapping[str, list["Overlap"]], count: int
) -> dict[str, Any]:
    datasets = [
        {"name": name, "rows": len(indices[name]), "found": [asdict(overlap) for overlap in overlaps]}
        for name, overlaps in found.items()
    ]
    return {"training_rows": count, "datasets": datasets}


def _print(name: str, rows: int, overlaps: list["Overlap"], count: int) -> None:
    same = sum(overlap.is_same for overlap in overlaps)
    if not overlaps:
        print_text(f"{name}: none of the {rows} questions is in the {count} training rows")
        return
    print_text(
        f"{name}: {len(overlaps)} of the {rows} questions are in the {count} training rows: {same} with the "
        f"same text, {len(overlaps) - same} with most of their words"
    )
    for overlap in overlaps[:_SHOWN]:
        share = "same text" if overlap.is_same else f"{overlap.share:.0%} of its words"
        text = overlap.text if len(overlap.text) <= _MAX_TEXT else f"{overlap.text[:_MAX_TEXT]}…"
        print_text(
            f"  row {one_line(overlap.row)} is training row {one_line(overlap.training_row)} ({share}): "
            f"{one_line(text)}"
        )
    if (more := len(overlaps) - _SHOWN) > 0:
        print_text(f"  and {more} more (--json)")
