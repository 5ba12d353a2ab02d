"""Makes the console that tables are printed to."""

import sys

from rlrun.runner.host.rich_console import SafeConsole

_PIPED_COLUMNS = 200
"""A file or a pipe has no width; rich would fold tables to 80 columns there."""


def table_console() -> SafeConsole:
    """Returns a console as wide as the terminal, or wide enough for every table where there is none."""
    return SafeConsole(width=None if sys.stdout.isatty() else _PIPED_COLUMNS)
