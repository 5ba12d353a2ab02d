"""`rlrun compare`: compares evaluations on the same prompts, with intervals and paired tests."""

import json
import math
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import AsJson, RunsDir
from rlrun.runner.host.printed_text import one_line

if TYPE_CHECKING:
    from rlrun.runner.host.rich_console import SafeConsole
    from rlrun.runner.records.compared_evaluations import Comparison, Evaluation


def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="A B …",
            help="Runs of `rlrun eval`, or jobs with [eval]: their last evaluation, or RUN@STEP for another.",
        ),
    ],
    runs_dir: RunsDir = Path("runs"),
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write what is printed as a page for a browser."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the rewards of evaluations on the same prompts with those of the first one.

    The differences are paired by prompt, which finds smaller ones than the intervals of each rate would. A
    job that trains saves about 512 samples of each evaluation and dataset, rlrun eval saves all.
    """
    from rlrun.cli.output import PIPED_COLUMNS, table_console
    from rlrun.runner.host.rich_console import SafeConsole
    from rlrun.runner.records.compared_evaluations import compare

    if len(runs) < 2:
        raise ValueError("name two evaluations or more: rlrun compare A B")
    comparisons = list(compare([_evaluation(name, runs_dir) for name in runs]))
    if as_json:
        print(json.dumps([comparison.as_json() for comparison in comparisons]))
    else:
        _print_table(table_console(), comparisons)
    if html is not None:
        page = SafeConsole(record=True, file=StringIO(), width=PIPED_COLUMNS)
        _print_table(page, comparisons)
        html.write_text(page.export_html(), "utf-8")


def _evaluation(name: str, runs_dir: Path) -> "Evaluation":
    from rlrun.cli.run_states import BEST, LATEST, best_step, find_run, split_step
    from rlrun.runner.records.compared_evaluations import read_evaluation

    run, at = split_step(name)
    folder = find_run(runs_dir, run)
    if at == BEST:
        return read_evaluation(folder, best_step(folder))
    step = None if at in (None, LATEST) else int(at)
    return read_evaluation(folder, step)


def _print_table(console: "SafeConsole", comparisons: Sequence["Comparison"]) -> None:
    from rlrun.cli.output import plain_table

    interval = "95 % interval"
    table = plain_table("dataset", "evaluation", "reward", interval, "prompts", "difference", interval, "p")
    for comparison in comparisons:
        table.add_row(*map(one_line, (comparison.dataset, comparison.name, *_values(comparison))))
    console.print(table)
    for note in _notes(comparisons):
        console.print(note, soft_wrap=True)


def _values(comparison: "Comparison") -> list[str]:
    estimate, difference = comparison.estimate, comparison.difference
    values = ["", "", "0"]
    if estimate is not None:
        values = [f"{estimate.mean:.3f}", _interval(estimate.low, estimate.high), str(estimate.prompts)]
    if difference is None:
        return [*values, "", "", ""]
    p_value = "" if math.isnan(difference.p_value) else f"{difference.p_value:.2g}"
    return [*values, f"{difference.mean:+.3f}", _interval(difference.low, difference.high), p_value]


def _interval(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"{low:.3f} to {high:.3f}"


def _notes(comparisons: Sequence["Comparison"]) -> list[str]:
    """Returns what is left out, and how many tests there are."""
    notes = []
    for comparison in comparisons:
        where = f"{comparison.name} on {comparison.dataset}"
        if comparison.failed:
            notes.append(f"{where}: {comparison.failed} samples failed or ran out of time and are left out")
        difference = comparison.difference
        left_out = comparison.only_in_one + (0 if difference is None else difference.left_out)
        if difference is not None and left_out:
            notes.append(f"{where}: the difference leaves out {left_out} prompts without a reward in both")
    tests = sum(comparison.difference is not None for comparison in comparisons)
    if tests > 1:
        notes.append(
            f"{tests} tests: each has p < 0.05 in one of 20 cases although the models are equal; ask for p < "
            f"{0.05 / tests:.2g} to have that chance for all of them together"
        )
    return notes
