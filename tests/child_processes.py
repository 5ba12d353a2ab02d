"""What runs below the process of the tests."""

from contextlib import suppress

import psutil


def command_lines() -> list[str]:
    """Returns the command line of every living descendant; a zombie has none."""
    lines = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # also raised for zombies
            lines.append(" ".join(process.cmdline()))
    return lines
