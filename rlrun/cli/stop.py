"""`rlrun stop`: ends a running job cleanly."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import NeededRunName, RunsDir
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.printed_text import print_text

if TYPE_CHECKING:
    from rlrun.runner.records.run_folder import RunFolder


def command(
    name: NeededRunName,
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
    from rlrun.cli.run_states import find_run
    from rlrun.cli.submitted import find_submitted
    from rlrun.runner.checkpoints.folder import newest_step
    from rlrun.runner.job.run_ending import ENDING_TIMEOUT_S, stop_timeout
    from rlrun.runner.job.stopping import resume_hint

    submitted = find_submitted(runs_dir, name)
    if submitted is not None and submitted.state.phase != "ended":
        run = submitted.folder.run
        seconds = stop_timeout(run) + ENDING_TIMEOUT_S if timeout is None else timeout
        if not submitted.end(seconds):
            about = submitted.describe(submitted.state)
            print_text(f"{name} was asked to stop and has not ended after {seconds:g} s; {about}")
            raise typer.Exit(ExitCode.FAILED)
        if not run.state.exists():
            print_text(f"{name}: cancelled before it started")
            return
    else:
        run = find_run(runs_dir, name)
        _stop_here(run, timeout)
    state = run.current_state()
    # a run that has not started its steps, or only evaluates, does not know them
    where = f" at step {state['step']} of {state['steps']}" if state["steps"] else ""
    print_text(f"{name}: {state['status']}{where}")
    if state["status"] != "done":
        print_text(resume_hint(state["step"], newest_step(run.checkpoints), run.argument))


def _stop_here(run: "RunFolder", timeout: float | None) -> None:
    """Stops a run of this host, and waits until it has ended."""
    from rlrun.runner.job.run_ending import ENDING_TIMEOUT_S, has_ended, interrupt, stop_timeout
    from rlrun.runner.records.state import is_alive

    state = run.read_state()
    if not is_alive(state):
        raise ValueError(f"{run.name} is not running: {run.current_state()['status']}")
    interrupt(run, state)
    seconds = stop_timeout(run) + ENDING_TIMEOUT_S if timeout is None else timeout
    if not has_ended(run, seconds):
        print_text(
            f"{run.name} (process {state['pid']}) was asked to stop and is still running after {seconds:g} s"
        )
        print_text(
            f"see rlrun logs {run.argument}; a second rlrun stop {run.argument} ends it at once, "
            "without saving"
        )
        raise typer.Exit(ExitCode.FAILED)
