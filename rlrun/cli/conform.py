"""`rlrun conform`: compares another trainer's batch with what rlrun computes from it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import AsJson, RunsDir
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.printed_text import one_line, print_text

if TYPE_CHECKING:
    from rlrun.runner.conform.comparison import Difference, Finding, Report
    from rlrun.runner.conform.dump import Dump

_STYLES = {"equal": "green", "differs": "bold red", "not compared": "dim"}
_OTHER_EXPLANATIONS = 3
"""Further explanations that are shown; --json has all."""


def command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DUMP",
            help="A batch that another trainer dumped (docs/conform.md), or RUN@STEP: the samples of a step "
            "that a run of rlrun stores.",
        ),
    ],
    *,
    runs_dir: RunsDir = Path("runs"),
    tolerance: Annotated[
        float,
        typer.Option(
            min=0, help="Largest difference that counts as equal, in units of the term's largest value."
        ),
    ] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Compare another trainer's batch with what rlrun computes from it.

    Computes advantages, ratios, KL, token losses, the loss and its gradients with rlrun's own algorithms,
    and names the first term that differs, where, and the setting that explains it. The exit code is 2 if a
    term differs.
    """
    from rlrun.cli.output import show_waiting
    from rlrun.runner.conform.comparison import conform

    with show_waiting(f"computing {one_line(str(path))}"):
        dump = _dump(path, runs_dir)
        report = conform(dump, tolerance)
    if as_json:
        print(json.dumps({"dump": str(path), "source": dump.settings.batch.source, **report.as_json()}))
    else:
        _print(dump, report)
    if report.differences:
        raise typer.Exit(ExitCode.WRONG)


def _dump(path: Path, runs_dir: Path) -> "Dump":
    from rlrun.cli.run_states import run_of, split_step
    from rlrun.runner.conform.dump import read_dump
    from rlrun.runner.conform.stored_samples import dump_of_step

    name, step = split_step(str(path))
    run = None if path.exists() or step is None else run_of(name, runs_dir)
    if run is None:
        return read_dump(path)
    if step is None or not step.isdecimal():
        raise ValueError(f"{path}: write the number of a step: {name}@12")
    return dump_of_step(run, int(step))


def _print(dump: "Dump", report: "Report") -> None:
    from rich.text import Text

    from rlrun.cli.output import plain_table, table_console

    samples, tokens = dump.batch.tokens.shape[0], int(dump.batch.mask.sum())
    source = f"{one_line(dump.settings.batch.source)}: " if dump.settings.batch.source else ""
    print_text(
        f"{source}{samples} samples, {tokens} trained tokens, algorithm {dump.settings.algorithm.type}\n"
    )
    table = plain_table("term", "result", "largest difference", "")
    for finding in report.findings:
        result = Text(finding.status, style=_STYLES[finding.status])
        largest = "" if finding.status == "not compared" else f"{finding.largest:.2g}"
        table.add_row(finding.term, result, largest, finding.why_not)
    table_console().print(table)
    title = "first difference"
    for finding in report.differences:
        _print_difference(dump, finding, title)
        settled = "that setting" if finding.explanations else f"the dump's {finding.term}"
        title = f"with {settled}, the next difference"
    if report.untested and not report.differences:
        print_text(f"\nthis batch is the same with other settings of: {', '.join(report.untested)}")


def _print_difference(dump: "Dump", finding: "Finding", title: str) -> None:
    difference = finding.difference
    assert difference is not None, "a term that differs"
    print_text(f"\n{title}: {finding.term}, {_place(dump, difference)}")
    for number, explanation in enumerate(finding.explanations[: 1 + _OTHER_EXPLANATIONS]):
        word = "explained by" if number == 0 else "or by"
        print_text(f"  {word}: {' and '.join(explanation.settings)}  ({', '.join(explanation.names)})")
    if (more := len(finding.explanations) - 1 - _OTHER_EXPLANATIONS) > 0:
        print_text(f"  or by {more} more (--json)")
    if not finding.explanations:
        print_text("  no setting that rlrun tries explains it (docs/conform.md lists them)")
        if difference.factor is not None:
            print_text(f"  all of the dump's values are {difference.factor:.6g} times rlrun's")


def _place(dump: "Dump", difference: "Difference") -> str:
    """Returns where the largest difference is, and how much differs."""
    values = f"{difference.theirs:.6g} in the dump, {difference.ours:.6g} by rlrun"
    if difference.sample is None or difference.token is None:
        return values
    group = int(dump.batch.groups[difference.sample])
    token = int(dump.batch.tokens[difference.sample, difference.token])
    return (
        f"most on sample {difference.sample} (group {group}), "
        f"token {difference.token} (id {token}): {values}; "
        f"{difference.tokens} tokens of {difference.samples} samples differ"
    )
