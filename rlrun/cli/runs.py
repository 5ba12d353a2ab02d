"""`rlrun runs`: every run of a runs folder, newest first."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from rlrun.cli.arguments import AsJson, RunsDir


def command(runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """List runs: status, step, reward."""
    from rlrun.cli.run_states import all_runs, shown_state

    states = [(run.name, shown_state(run)) for run in all_runs(runs_dir)]
    if as_json:
        print(json.dumps([{"name": name, **state} for name, state in states]))
    elif not states:
        print(f"no runs in {runs_dir}")
    else:
        _print_table(states)


def _print_table(states: list[tuple[str, dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "status", "step", "reward", "started", box=None, pad_edge=False)
    for name, state in states:
        reward = state["metrics"].get("rollout/reward/mean")
        started = datetime.fromisoformat(state["started"]).astimezone().strftime("%Y-%m-%d %H:%M")
        shown_reward = "" if reward is None else f"{reward:.3f}"
        table.add_row(
            name, state["status"], f"{state['step']}/{state['steps'] or '?'}", shown_reward, started
        )
    Console(highlight=False).print(table)
