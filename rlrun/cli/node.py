"""`rlrun node`: one machine of a submitted job; launchers call it."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    control: Annotated[Path, typer.Argument(help="Folder of the attempt, which all its nodes share.")],
    *,
    rank: Annotated[int, typer.Option(min=0, help="Number of this node; node 0 has Ray's head.")],
    head: Annotated[str, typer.Option(help="Address of node 0, as the other nodes reach it.")],
    cpus: Annotated[int, typer.Option(min=1, help="CPU cores of this node for the job.")],
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of this node for the job.")] = 0,
) -> None:
    """Run Ray on one machine of a submitted job, until the attempt ends. Launchers call this.

    Keeps a scheduler's SIGTERM and SIGUSR1 away from Ray, tells the attempt of them, and removes what Ray
    leaves on the machine.
    """
    from rlrun.runner.submission.node import run_node

    raise typer.Exit(run_node(control, rank, head, cpus, gpus))
