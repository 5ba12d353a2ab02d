"""`rlrun release`: gives a machine of a submitted job back; launchers call it."""

from pathlib import Path
from typing import Annotated

import typer

from rlrun.runner.contracts.exit_codes import ExitCode


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of the submission, RUNS_DIR/.submitted/NAME.")],
    *,
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to wait until the attempt has ended.")],
) -> None:
    """Ask the attempt of a submitted job to save and end, and wait for it. Launchers call this.

    For schedulers that run a command on a machine before they take it away, as Kubernetes does (preStop).
    """
    from rlrun.runner.submission.folder import SubmissionFolder
    from rlrun.runner.submission.node import release_machine

    ended = release_machine(SubmissionFolder(folder.parent.parent, folder.name), seconds)
    raise typer.Exit(ExitCode.DONE if ended else ExitCode.FAILED)
