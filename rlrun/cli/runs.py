"""`rlrun runs`: lists every run of a runs folder, newest first."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli.arguments import AsJson, RunsDir
from rlrun.runner.host.printed_text import one_line, print_text

if TYPE_CHECKING:
    from rlrun.runner.records.run_folder import RunFolder


def command(runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """List all runs with their status, step and reward."""
    from rlrun.cli.run_states import list_runs

    runs = list_runs(runs_dir)
    states = _readable(runs)
    if as_json:
        print(json.dumps([{"name": name, **state} for name, state in states]))
    elif not runs:
        print_text(f"no runs in {runs_dir}")
    else:
        _print_table(states)


def _readable(runs: "list[RunFolder]") -> list[tuple[str, dict[str, Any]]]:
    """Returns names and states, and reports states that cannot be read on standard error."""
    from rlrun.cli.error_report import print_error
    from rlrun.runner.contracts.errors import RunFolderError

    states = []
    for run in runs:
        try:
            states.append((run.name, run.current_state()))
        except RunFolderError as error:
            print_error(str(error))
    return states


def _print_table(states: list[tuple[str, dict[str, Any]]]) -> None:
    from rlrun.cli.output import plain_table, table_console

    table = plain_table("run", "status", "step", "reward", "started")
    for name, state in states:
        reward = state["metrics"].get("rollout/reward/mean")
        started = datetime.fromisoformat(state["started"]).astimezone().strftime("%Y-%m-%d %H:%M")
        shown_reward = "" if reward is None else f"{reward:.3f}"
        table.add_row(
            one_line(name),
            state["status"],
            f"{state['step']}/{'?' if state['steps'] is None else state['steps']}",
            shown_reward,
            started,
        )
    table_console().print(table)
