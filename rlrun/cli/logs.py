"""`rlrun logs`: the last lines of what a run's processes wrote."""

from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.arguments import RunsDir
from rlrun.specs.spelling import nearest


def command(
    name: Annotated[str, typer.Argument(help="Name of the run.")],
    process: Annotated[
        str | None, typer.Argument(help="driver, trainer-0, engine-0, …; all of them when left out.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines from the end of each.")] = 20,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show the end of every log of a run, or of one process's."""
    from rlrun.cli.run_states import find_run

    folder = find_run(runs_dir, name).logs
    files = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if process is not None and process not in files:
        meant = nearest(process, files)
        guess = f"did you mean {meant}? " if meant else ""
        raise ValueError(f"{name} has no log {process}; {guess}there are: {', '.join(files) or 'none'}")
    for each, path in files.items():
        if process in (None, each):
            print(f"== {path}")
            print(_tail(path, lines), end="")


def _tail(path: Path, lines: int) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return "".join(deque(file, maxlen=lines))
