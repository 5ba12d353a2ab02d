"""`rlrun stop`: end a running job cleanly."""

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


def command(
    name: Annotated[str, typer.Argument(help="Name of the run.")],
    runs_dir: RunsDir = Path("runs"),
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the run to end.", min=0)] = 60.0,
) -> None:
    """Interrupt a run as Ctrl-C would, and wait for it to end."""
    from rlrun.cli.run_states import find_run, shown_state
    from rlrun.runner.records.run_folder import is_alive

    run = find_run(runs_dir, name)
    state = run.read_state()
    if not is_alive(state):
        raise ValueError(f"{name} is not running: {shown_state(run)['status']}")
    if state["host"] != socket.gethostname():
        raise ValueError(f"{name} runs on {state['host']}, not on this host; stop it there")
    os.kill(state["pid"], signal.SIGINT)
    if not _ended(run, timeout):
        print(f"{name} (process {state['pid']}) was told to stop and still runs after {timeout:g} s")
        print(f"see rlrun logs {name}; another rlrun stop {name} asks again")
        raise typer.Exit(3)
    state = shown_state(run)
    print(f"{name}: {state['status']} at step {state['step']} of {state['steps'] or '?'}")


def _ended(run: "RunFolder", timeout: float) -> bool:
    """Whether the run's process ends, or says that it has, before the time is up."""
    from rlrun.runner.records.run_folder import is_alive

    deadline = time.monotonic() + timeout
    while is_alive(run.read_state()):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
