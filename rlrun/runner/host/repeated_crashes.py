"""Detects repeated crashes: a process that crashes twice at the same step is not started a third time.

log: "Fatal Python error: Illegal instruction" ─▶ SIGILL ─▶ same signal and step as the last crash? JobError
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.models.foreign_files import open_regular
from rlrun.runner.contracts.errors import JobError
from rlrun.specs.problems.codes import Code

_FATAL = re.compile(r"^Fatal Python error: (.+?)\s*$", re.MULTILINE)
_SIGNALS = {
    "Illegal instruction": "SIGILL",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
    "Aborted": "SIGABRT",
}
"""The words that faulthandler writes for a signal, after "Fatal Python error: "."""
_REPEATS = re.compile(r"\bSIG(?:ILL|SEGV|BUS|FPE)\b")
"""Signals that a process causes itself. SIGKILL comes from outside (out of memory), and NCCL uses SIGABRT to
end a rank that waited too long for the others."""


def fatal_signal(log: Path, start: int) -> str | None:
    """Returns the last signal that faulthandler logged after byte `start`, such as `SIGBUS (Bus error)`."""
    try:
        with open_regular(log) as file:
            file.seek(start)
            errors = _FATAL.findall(file.read().decode(errors="replace"))
    except OSError:
        return None
    name = _SIGNALS.get(errors[-1]) if errors else None
    return f"{name} ({errors[-1]})" if name else None


@dataclass(slots=True)
class Crashes:
    """Remembers the last crash of a process that is started again."""

    _last: tuple[str, object] | None = field(default=None)

    def check(self, failure: JobError, progress: object) -> None:
        """Records a failure. Raises JobError if the process crashed with the same signal and progress before.

        `progress` is how far the process was: a step, or a version of the weights.
        """
        signal = _REPEATS.search(str(failure))
        crash = (signal[0], progress) if signal else None
        if crash is not None and crash == self._last:
            raise JobError(
                f"{failure}; it crashed with {crash[0]} at the same place before, so another start would not "
                "help: its log names the code that it was in",
                failure.details,
                code=Code.PROCESS,
            ) from failure
        self._last = crash
