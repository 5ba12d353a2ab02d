"""Crashes that repeat: a process that crashes twice at the same place is not started a third time.

log: "Fatal Python error: Illegal instruction" ─▶ SIGILL ─▶ where the job was ─▶ the same as before? give up
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.runner.contracts.errors import JobError

_FATAL = re.compile(r"^Fatal Python error: (.+?)\s*$", re.MULTILINE)
_SIGNALS = {
    "Illegal instruction": "SIGILL",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
    "Aborted": "SIGABRT",
}
"""What faulthandler writes first of all when a process receives a signal."""
_REPEATS = re.compile(r"\bSIG(?:ILL|SEGV|BUS|FPE)\b")
"""Signals of a process's own doing. SIGKILL is somebody else's (out of memory), and with SIGABRT NCCL ends a
rank that waited too long for the others."""


def fatal_signal(log: Path, start: int) -> str | None:
    """The signal that faulthandler named last in a log from byte `start` on: `SIGBUS (Bus error)`."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            found = _FATAL.findall(file.read().decode(errors="replace"))
    except OSError:
        return None
    name = _SIGNALS.get(found[-1]) if found else None
    return f"{name} ({found[-1]})" if name else None


@dataclass(slots=True)
class Crashes:
    """The last crash of a process that is started again."""

    _last: tuple[str, object] | None = field(default=None)

    def check(self, failure: JobError, place: object) -> None:
        """Note where a process failed. JobError where it crashed at the same place before."""
        found = _REPEATS.search(str(failure))
        crash = (found[0], place) if found else None
        if crash is not None and crash == self._last:
            raise JobError(
                f"{failure}; it crashed with {crash[0]} at the same place before, so another start would not "
                "help: its log names the code that it was in",
                failure.details,
            ) from failure
        self._last = crash
