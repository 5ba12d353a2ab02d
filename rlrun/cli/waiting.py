"""What a terminal shows while a command works for more than a moment."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def show_waiting(what: str) -> Iterator[None]:
    """Shows on a terminal what the block is busy with and for how long; the line goes when it ends."""
    console = Console(stderr=True)
    columns = (SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(what, total=None)
        yield
