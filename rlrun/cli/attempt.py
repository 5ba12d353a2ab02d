"""`rlrun attempt`: one attempt of a submitted job; launchers call it."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of the submission, RUNS_DIR/.submitted/NAME.")],
    *,
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines.")],
    id: Annotated[str, typer.Option(help="Name of this attempt in messages.")],
    start_nodes: Annotated[
        str | None,
        typer.Option(help="Shell command that runs `rlrun node` on each machine, until they end."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of the Ray cluster that the scheduler has started for this attempt."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            min=0.0, help="With --address: seconds for the last attempt to save, if it has not ended yet."
        ),
    ] = 0.0,
    again: Annotated[
        str | None,
        typer.Option(
            help="Shell command that has the scheduler start the job again. Default: the exit code says so."
        ),
    ] = None,
    idle_attempts: Annotated[
        int,
        typer.Option(
            min=1, help="Attempts in a row without a new step, after which the job is not repeated."
        ),
    ] = 3,
) -> None:
    """Run one attempt of a submitted job: its machines, its launch, and their end. Launchers call this.

    Its machines are those of --start-nodes, or of a Ray cluster that runs already (--address).
    Exits as rlrun launch does. After exit codes 69 and 75 the job is worth another attempt.
    """
    from rlrun.cli.launch import end_process
    from rlrun.runner.submission.attempt import AttemptOrders, run_attempt
    from rlrun.runner.submission.folder import SubmissionFolder

    if (start_nodes is None) == (address is None):
        raise ValueError("rlrun attempt takes either --start-nodes or --address")
    orders = AttemptOrders(id, nodes, start_nodes, address, grace, again, idle_attempts)
    end_process(run_attempt(SubmissionFolder(folder.parent.parent, folder.name), orders))
