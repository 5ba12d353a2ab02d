"""Writes log messages to the driver's log, and warnings to the console too, without secrets.

An exception may quote the address or the header that it failed with. Secrets are therefore removed where text
leaves the process: those that the spec refers to by their values, others by their form.
"""

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rlrun.models.foreign_files import read_bytes
from rlrun.runner.host.log_lines import LineFormatter
from rlrun.runner.host.printed_text import one_line
from rlrun.runner.records.console import BEGUN, Console
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.reading.literal_secrets import mask_secrets
from rlrun.specs.reading.secret_references import redact_secrets

DRIVER_LOG = "driver.log"
_MAX_START = 1 << 20
"""Bytes of a driver's log up to which `current_phases` reads it: that of a start is much shorter."""
_ENDED = re.compile(r"  (?P<phase>.+): [\d.]+ s")
"""The message that a phase has ended."""

Hide = Callable[[str], str]


def hide_secrets(spec: Mapping[str, Any], text: str) -> str:
    """Returns a text without the secrets that the spec refers to or that are recognised by their form."""
    return mask_secrets(redact_secrets(text, spec))


def start_logging(
    folder: RunFolder, console: Console, hide: Hide, *, verbose: bool = False
) -> list[logging.Handler]:
    """Sends all log messages to the driver's log, and rlrun's warnings to the console.

    `verbose`: the console gets all of rlrun's messages.
    """
    file = LogFile(folder.logs / DRIVER_LOG)
    file.setFormatter(SecretFormatter(hide))
    logging.getLogger().addHandler(file)
    console_handler = _ConsoleHandler(console, hide, logging.INFO if verbose else logging.WARNING)
    logging.getLogger("rlrun").addHandler(console_handler)
    logging.getLogger("rlrun").setLevel(logging.INFO)
    return [file, console_handler]


def current_phases(folder: RunFolder) -> str:
    """Returns what the driver waits for by its log, or else the log's last message.

    Empty if the log cannot be read or is long.
    """
    try:
        lines = read_bytes(folder.logs / DRIVER_LOG, _MAX_START).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    messages = [line.partition(": ")[2] for line in lines]
    phases: dict[str, None] = {}
    for message in messages:
        if message.endswith(BEGUN):
            phases[message.removesuffix(BEGUN)] = None
        elif ended := _ENDED.fullmatch(message):
            phases.pop(ended["phase"], None)
    return one_line(", ".join(phases) or messages[-1].strip()) if messages else ""


class LogFile(logging.FileHandler):
    """A log file that ignores a full disk; the journal, which writes to the same disk, reports that."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drops the line."""

    def close(self) -> None:
        """Closes the file; buffered lines are dropped if the disk is full."""
        with suppress(OSError):
            super().close()


class SecretFormatter(LineFormatter):
    """Formats messages and tracebacks without secrets."""

    def __init__(self, hide: Hide) -> None:
        super().__init__()
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        """Formats one record."""
        return self._hide(super().format(record))


class _ConsoleHandler(logging.Handler):
    """Prints messages from a level on as lines above the live panel."""

    def __init__(self, console: Console, hide: Hide, level: int) -> None:
        super().__init__(level)
        self._console = console
        self._hide = hide

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one record, with its traceback if the level is INFO; the console's own are shown already."""
        if record.levelno >= logging.WARNING:
            self._console.show_problem(self._hide(record.getMessage()), style="yellow")
        elif record.name != Console.__module__:
            self._console.show(self._hide(self.format(record)), style="dim")
