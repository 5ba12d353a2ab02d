"""Shows on a terminal that a command is working."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rlrun.runner.host.rich_console import SafeConsole


@contextmanager
def show_waiting(work: str) -> Iterator[None]:
    """Shows the work of a block and its duration on a terminal, until the block ends."""
    console = SafeConsole(stderr=True)
    columns = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(work, total=None)
        yield
