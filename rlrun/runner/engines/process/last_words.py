"""Says why a server died, from the end of its log and its exit status."""

import re
import signal
from pathlib import Path

_TAIL_BYTES = 200_000
_ERROR = re.compile(r"^(?:\[[^\]]*\] )?((?:[\w.]*(?:Error|Exception|Exit|Interrupt)\b|error:|.*: error:).*)")
"""`ValueError: …` at the end of a traceback, `launch_server.py: error: …` of its argument parser."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def written(log: Path, start: int) -> str:
    """Returns the text of a log from byte `start` on, without colours; only the end of a very long one."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
        return _COLOURS.sub("", file.read().decode(errors="replace"))


def last_error(output: str) -> str:
    """Returns the last line of a log that states an error; the last line if none does."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [match[1] for line in lines if (match := _ERROR.match(line))]
    return errors[-1] if errors else last_line(output)


def last_line(output: str) -> str:
    """Returns the last line that is not empty."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "nothing")


def ending(status: int) -> str:
    """Returns how a process ended, from its exit status."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
