"""Consoles of commands: one that tables are printed to, and a line that shows that a command is working."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rlrun.runner.host.rich_console import SafeConsole

if TYPE_CHECKING:
    from rich.table import Table

PIPED_COLUMNS = 200
"""A file or a pipe has no width; rich would fold tables to 80 columns there."""


def table_console() -> SafeConsole:
    """Returns a console as wide as the terminal, or wide enough for every table where there is none."""
    return SafeConsole(width=None if sys.stdout.isatty() else PIPED_COLUMNS)


def plain_table(*headings: str) -> "Table":
    """Returns a table without lines, which folds long names in a narrow terminal.

    A name that was cut cannot be given to another command.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


@contextmanager
def show_waiting(work: str) -> Iterator[None]:
    """Shows the work of a block and its duration on a terminal, until the block ends."""
    console = SafeConsole(stderr=True)
    columns = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(work, total=None)
        yield
