"""`rlrun status`: how one run is doing."""

import json
from pathlib import Path

from rlrun.cli.arguments import AsJson, RunName, RunsDir


def command(name: RunName = None, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Show a run's status, step and latest metrics."""
    from rlrun.cli.run_states import find_run, shown_state

    run = find_run(runs_dir, name)
    state = shown_state(run)
    if as_json:
        print(json.dumps({"name": run.name, "folder": str(run.path), **state}))
        return
    print(f"{run.name}: {state['status']}, step {state['step']} of {state['steps'] or '?'}  ({run.path})")
    print(
        f"started {state['started']}, updated {state['updated']}, process {state['pid']} on {state['host']}"
    )
    if state["error"]:
        print(f"error: {state['error']}")
    if state["status"] in ("died", "failed", "interrupted"):
        print(f"its logs: rlrun logs {run.name}; to go on: rlrun launch SPEC --name {run.name} --resume")
    width = max(map(len, state["metrics"]), default=0)
    for metric, value in sorted(state["metrics"].items()):
        print(f"  {metric:{width}}  {'none' if value is None else format(value, '.6g')}")
