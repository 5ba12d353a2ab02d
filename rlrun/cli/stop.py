"""`rlrun stop`: end a running job cleanly."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import RunsDir

if TYPE_CHECKING:
    from rlrun.runner.records.run_folder import RunFolder

_POLL_S = 0.1
_STOP_TIMEOUT_S = 60.0
"""Of a run that has not written its lock yet."""
_TO_END_S = 60.0
"""For a run to end its processes, and trackers to close, after it has saved."""


def command(
    name: Annotated[str, typer.Argument(help="Name of the run.")],
    runs_dir: RunsDir = Path("runs"),
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds to wait for the run to end; unless set a minute beyond checkpoint.stop_timeout.",
            min=0,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Ask a run to save its last step and to end, as Ctrl-C would, and wait for it."""
    from rlrun.cli.run_states import find_run, shown_state
    from rlrun.runner.checkpoint import newest_step
    from rlrun.runner.records.run_folder import is_alive
    from rlrun.runner.stopping import outcome

    run = find_run(runs_dir, name)
    state = run.read_state()
    if not is_alive(state):
        raise ValueError(f"{name} is not running: {shown_state(run)['status']}")
    if state["host"] != socket.gethostname():
        raise ValueError(f"{name} runs on {state['host']}, not on this host; stop it there")
    os.kill(state["pid"], signal.SIGINT)
    seconds = _stop_timeout(run) + _TO_END_S if timeout is None else timeout
    if not _ended(run, seconds):
        print(f"{name} (process {state['pid']}) was told to stop and still runs after {seconds:g} s")
        print(f"see rlrun logs {name}; another rlrun stop {name} ends it at once, and saves nothing")
        raise typer.Exit(3)
    state = shown_state(run)
    print(f"{name}: {state['status']} at step {state['step']} of {state['steps'] or '?'}")
    if state["status"] != "done":
        print(outcome(state["step"], newest_step(run.checkpoints)))


def _stop_timeout(run: "RunFolder") -> float:
    """Seconds that the run may take to save."""
    try:
        return float(json.loads(run.lock.read_text("utf-8"))["spec"]["checkpoint"]["stop_timeout"])
    except (OSError, ValueError, KeyError):
        return _STOP_TIMEOUT_S


def _ended(run: "RunFolder", timeout: float) -> bool:
    """Whether the run's process ends, or says that it has, before the time is up."""
    from rlrun.runner.records.run_folder import is_alive

    deadline = time.monotonic() + timeout
    while is_alive(run.read_state()):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
