"""`rlrun audit`: checks that a run is what its files say it is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import AllowLocalPlugins, AsJson, RunName, RunsDir
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.printed_text import one_line, print_text

if TYPE_CHECKING:
    from rlrun.runner.audit.check import Outcome

_SHOWN = 3
"""Violations of one check that the table shows; --json has up to 100."""
_STYLES = {"passed": "green", "violated": "bold red", "not checked": "dim"}


def command(
    name: RunName = None,
    *,
    runs_dir: RunsDir = Path("runs"),
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", help="Leave out a check of docs/auditing.md; repeatable."),
    ] = None,
    as_json: AsJson = False,
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """Check that a run is what its files say it is.

    Reads the run's folder, also while it runs: samples, metrics, spec, checkpoints and logs; computes again
    what follows from them. What the run does not store is named as not checked. The exit code is 2 if
    something is wrong.
    """
    from rlrun.cli.output import show_waiting
    from rlrun.cli.run_states import find_run
    from rlrun.runner.audit.table import CHECKS, audit

    left_out = set(skip or ())
    if unknown := left_out - {check.name for check in CHECKS}:
        names = ", ".join(check.name for check in CHECKS)
        raise ValueError(f"--skip {min(unknown)}: there is no such check; the checks are {names}")
    folder = find_run(runs_dir, name)
    with show_waiting(f"auditing {one_line(folder.name)}"):
        outcomes = audit(folder, left_out)
    if as_json:
        print(json.dumps({"run": folder.name, "checks": [outcome.as_json() for outcome in outcomes]}))
    else:
        _print(outcomes)
    if any(outcome.violations for outcome in outcomes):
        raise typer.Exit(ExitCode.WRONG)


def _print(outcomes: Sequence["Outcome"]) -> None:
    from rich.text import Text

    from rlrun.cli.output import plain_table, table_console

    table = plain_table("check", "result", "inspected", "not checked")
    for outcome in outcomes:
        inspected = f"{outcome.inspected} {outcome.check.inspects}" if outcome.inspected else ""
        result = Text(outcome.status, style=_STYLES[outcome.status])
        table.add_row(outcome.check.name, result, inspected, one_line(outcome.why_not))
    table_console().print(table)
    for outcome in outcomes:
        if outcome.violations:
            _print_violations(outcome)
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _STYLES}
    print_text("\n" + ", ".join(f"{count} {status}" for status, count in counts.items()))


def _print_violations(outcome: "Outcome") -> None:
    check = outcome.check
    print_text(
        f"\n{check.severity} {check.name}: {outcome.num_violations} of {outcome.inspected} {check.inspects}"
    )
    for violation in outcome.violations[:_SHOWN]:
        print_text(f"  {one_line(violation.place)}: {one_line(violation.message)}")
    if (more := outcome.num_violations - _SHOWN) > 0:
        print_text(f"  and {more} more (--json)")
    print_text(f"  -> {check.cure} (docs/auditing.md#{check.name})")
