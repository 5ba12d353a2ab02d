"""The driver's log: everything that is logged, and warnings on the console too, without secrets.

An exception may quote the address or the header that it failed with, so secrets are taken out where text
leaves the process: those that the spec refers to by their values, others by their form.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rlrun.runner.records.console import Console
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.reading.literal_secrets import mask_secrets
from rlrun.specs.reading.secret_references import redact_secrets

DRIVER_LOG = "driver.log"

Hide = Callable[[str], str]


def hide_secrets(spec: Mapping[str, Any], text: str) -> str:
    """A message without the secrets that the spec refers to, and without others that show by their form."""
    return mask_secrets(redact_secrets(text, spec))


def log_to(folder: RunFolder, console: Console, hide: Hide) -> list[logging.Handler]:
    """Everything into the driver's log; our own warnings on the console too."""
    file = LogFile(folder.logs / DRIVER_LOG)
    file.setFormatter(Hiding("%(asctime)s %(levelname)s %(name)s: %(message)s", hide))
    logging.getLogger().addHandler(file)
    shown = _Shown(console, hide)
    logging.getLogger("rlrun").addHandler(shown)
    logging.getLogger("rlrun").setLevel(logging.INFO)
    return [file, shown]


class LogFile(logging.FileHandler):
    """A log whose disk may be full: the job says so by what it cannot write, once."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line."""

    def close(self) -> None:
        """Lose what is left."""
        with suppress(OSError):
            super().close()


class Hiding(logging.Formatter):
    """Writes messages and traces without secrets."""

    def __init__(self, form: str, hide: Hide) -> None:
        super().__init__(form)
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        return self._hide(super().format(record))


class _Shown(logging.Handler):
    """Warnings as lines above the live panel."""

    def __init__(self, console: Console, hide: Hide) -> None:
        super().__init__(logging.WARNING)
        self._console = console
        self._hide = hide

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        self._console.show(self._hide(record.getMessage()), style="yellow")
