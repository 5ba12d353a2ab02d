"""`rlrun stop`: end a running job cleanly."""

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
    from rlrun.cli.run_states import current_state, find_run
    from rlrun.runner.checkpoints.folder import newest_step
    from rlrun.runner.job.stopping import resume_hint
    from rlrun.runner.records.state import is_alive

    run = find_run(runs_dir, name)
    state = run.read_state()
    if not is_alive(state):
        raise ValueError(f"{name} is not running: {current_state(run)['status']}")
    _interrupt(run, state)
    seconds = _stop_timeout(run) + _TO_END_S if timeout is None else timeout
    if not _ended(run, seconds):
        print(f"{name} (process {state['pid']}) was told to stop and still runs after {seconds:g} s")
        print(f"see rlrun logs {name}; another rlrun stop {name} ends it at once, and saves nothing")
        raise typer.Exit(3)
    state = current_state(run)
    print(f"{name}: {state['status']} at step {state['step']} of {state['steps'] or '?'}")
    if state["status"] != "done":
        print(resume_hint(state["step"], newest_step(run.checkpoints)))


def _stop_timeout(run: "RunFolder") -> float:
    """Seconds that the run may take to save."""
    from rlrun.runner.records.lock import read_lock

    try:
        seconds = float(read_lock(run.lock)["spec"]["checkpoint"]["stop_timeout"])
    except (ValueError, KeyError, TypeError):
        return _STOP_TIMEOUT_S
    return seconds if 0 <= seconds < math.inf else _STOP_TIMEOUT_S


def _interrupt(run: "RunFolder", state: dict[str, Any]) -> None:
    """Interrupts the run's driver; ValueError, and no signal, if this cannot be the process of that id.

    The process id comes from a file. The descriptor keeps to one process while that is looked at.
    """
    from rlrun.runner.host.process_identity import Owner
    from rlrun.runner.records.claim import is_claimed_by

    owner = Owner.model_validate({each: state[each] for each in Owner.model_fields})
    if not owner.is_here:
        raise ValueError(
            f"{run.name} runs on {owner.host}, which is another host or container; stop it there"
        )
    process = os.pidfd_open(owner.pid)
    try:
        if not owner.is_running or not is_claimed_by(run, owner.pid):
            raise ValueError(
                f"process {owner.pid}, which {run.state} names, does not run {run.name}, or belongs to "
                "another user; it gets no signal"
            )
        signal.pidfd_send_signal(process, signal.SIGINT)
    finally:
        os.close(process)


def _ended(run: "RunFolder", timeout: float) -> bool:
    """Whether the run's process ends, or says that it has, before the time is up."""
    from rlrun.runner.records.state import is_alive

    deadline = time.monotonic() + timeout
    while is_alive(run.read_state()):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
