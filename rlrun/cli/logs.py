"""`rlrun logs`: shows the last lines of the logs of a run's processes."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import RunName, RunsDir
from rlrun.models.foreign_files import open_regular
from rlrun.runner.host.printed_text import log_text, print_text
from rlrun.specs.problems.spelling import nearest

if TYPE_CHECKING:
    from rlrun.cli.submitted import Submitted
    from rlrun.runner.records.run_folder import RunFolder

_POLL_S = 0.5
_SCHEDULER = "scheduler"
"""In place of a process: what a submitted job printed where its scheduler put it."""


def command(
    name: RunName = None,
    process: Annotated[
        str | None,
        typer.Argument(
            help="driver, trainer-0, engine-0, …; scheduler: what a submitted job printed. Default: all."
        ),
    ] = None,
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines to show of each log.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")
    ] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show the end of every log of a run, or of the log of one process."""
    from rlrun.cli.run_states import find_run
    from rlrun.cli.submitted import find_submitted

    submitted = find_submitted(runs_dir, name)
    if submitted is not None and process in (None, _SCHEDULER):
        _show_output(submitted, lines)
        if process == _SCHEDULER or not submitted.folder.run.state.exists():
            return
    run = find_run(runs_dir, name)
    files = _logs(run, None)
    if process is not None and process not in files:
        meant = nearest(process, files)
        guess = f"did you mean {meant}? " if meant else ""
        raise ValueError(f"{run.name} has no log {process}; {guess}logs: {', '.join(files) or 'none'}")
    seen: dict[Path, int] = {}
    for path in _logs(run, process).values():
        print_text(f"== {path}")
        print_text(log_text(_tail(path, lines, seen)), end="")
    if follow:
        _follow(run, process, seen)


def _show_output(submitted: "Submitted", lines: int) -> None:
    """Shows what a submitted job printed: how its attempts began and ended, and messages of its nodes."""
    if not submitted.output.is_file():
        print_text(f"not started; {submitted.describe(submitted.state)}")
        return
    print_text(f"== {submitted.output}")
    print_text(log_text(_tail(submitted.output, lines, {})), end="")


def _logs(run: "RunFolder", process: str | None) -> dict[str, Path]:
    """Returns the logs by process. A link may lead out of the folder, and opening a pipe would block."""
    paths = [path for path in sorted(run.logs.glob("*.log")) if path.is_file() and not path.is_symlink()]
    files = {path.stem: path for path in paths}
    return files if process is None else {process: files[process]}


def _tail(path: Path, lines: int, seen: dict[Path, int]) -> str:
    """Returns the last lines, and stores the offset of their end in `seen`, in bytes."""
    with open_regular(path) as file:
        last = deque(file, maxlen=lines)
        seen[path] = file.tell()
    text = b"".join(last).decode("utf-8", errors="replace")
    return text if text.endswith("\n") or not text else f"{text}\n"


def _follow(run: "RunFolder", process: str | None, seen: dict[Path, int]) -> None:
    """Prints new lines, each with its process's name, until the run's process has ended."""
    from rlrun.runner.records.state import is_alive

    alive = True
    while alive:
        alive = is_alive(run.read_state())  # checked before reading, so that the last lines are not missed
        for stem, path in _logs(run, process).items():
            for line in fresh_lines(path, seen):
                print_text(log_text(f"{stem}: {line}" if process is None else line), flush=True)
        if alive:
            time.sleep(_POLL_S)


def fresh_lines(path: Path, seen: dict[Path, int]) -> Iterator[str]:
    """Yields the whole lines after the offset in `seen`, and advances it; a truncated file restarts at 0."""
    offset = seen.get(path, 0)
    with open_regular(path) as file:
        file.seek(offset if offset <= path.stat().st_size else 0)
        for line in iter(file.readline, b""):
            if not line.endswith(b"\n"):
                return
            seen[path] = file.tell()
            yield line.decode("utf-8", errors="replace").rstrip("\n")
