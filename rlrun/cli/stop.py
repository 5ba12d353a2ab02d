"""`rlrun stop`: ends a running job cleanly."""

import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli.arguments import RunsDir

if TYPE_CHECKING:
    from rlrun.runner.records.run_folder import RunFolder

_POLL_S = 0.1
_DEFAULT_STOP_TIMEOUT_S = 60.0
"""The time that a run may take to save if it has not written its lock yet."""
_ENDING_TIMEOUT_S = 60.0
"""The time that a run may take after saving, to end its processes and close its trackers."""


def command(
    name: Annotated[str, typer.Argument(help="Name of the run.")],
    runs_dir: RunsDir = Path("runs"),
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds to wait for the run to end. Default: checkpoint.stop_timeout and a minute.",
            min=0,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Ask a run to save its last step and end, as Ctrl-C would, and wait until it has."""
    from rlrun.cli.run_states import current_state, find_run
    from rlrun.runner.checkpoints.folder import newest_step
    from rlrun.runner.job.stopping import resume_hint
    from rlrun.runner.records.state import is_alive

    run = find_run(runs_dir, name)
    state = run.read_state()
    if not is_alive(state):
        raise ValueError(f"{name} is not running: {current_state(run)['status']}")
    _interrupt(run, state)
    seconds = _stop_timeout(run) + _ENDING_TIMEOUT_S if timeout is None else timeout
    if not _ended(run, seconds):
        print(f"{name} (process {state['pid']}) was asked to stop and is still running after {seconds:g} s")
        print(f"see rlrun logs {name}; a second rlrun stop {name} ends it at once, without saving")
        raise typer.Exit(3)
    state = current_state(run)
    print(f"{name}: {state['status']} at step {state['step']} of {state['steps'] or '?'}")
    if state["status"] != "done":
        print(resume_hint(state["step"], newest_step(run.checkpoints)))


def _stop_timeout(run: "RunFolder") -> float:
    """Returns the number of seconds that the run may take to save."""
    from rlrun.runner.records.lock import read_lock

    try:
        seconds = float(read_lock(run.lock)["spec"]["checkpoint"]["stop_timeout"])
    except (ValueError, KeyError, TypeError):
        return _DEFAULT_STOP_TIMEOUT_S
    return seconds if 0 <= seconds < math.inf else _DEFAULT_STOP_TIMEOUT_S


def _interrupt(run: "RunFolder", state: dict[str, Any]) -> None:
    """Interrupts the run's driver. Raises ValueError, and sends no signal, if the process is not the driver.

    The process id comes from a file, and the kernel may have reused it. The descriptor refers to one process
    while that process is checked, so the signal cannot reach another.
    """
    from rlrun.runner.host.process_identity import Owner
    from rlrun.runner.records.claim import is_claimed_by

    owner = Owner.model_validate({name: state[name] for name in Owner.model_fields})
    if not owner.is_here:
        raise ValueError(
            f"{run.name} runs on {owner.host}, which is another host or container; stop it there"
        )
    process = os.pidfd_open(owner.pid)
    try:
        if not owner.is_running or not is_claimed_by(run, owner.pid):
            raise ValueError(
                f"process {owner.pid}, which {run.state} names, does not run {run.name}, or belongs to "
                "another user; no signal was sent"
            )
        signal.pidfd_send_signal(process, signal.SIGINT)
    finally:
        os.close(process)


def _ended(run: "RunFolder", timeout: float) -> bool:
    """Returns whether the run's process ends, or reports its end, within the timeout."""
    from rlrun.runner.records.state import is_alive

    deadline = time.monotonic() + timeout
    while is_alive(run.read_state()):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
