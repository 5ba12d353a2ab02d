"""Stacks of processes that hang: each writes its own into its log, and the driver reads where it is.

    driver ──SIGUSR2──▶ faulthandler of the process ──▶ its log ──▶ `where`: a part of the message

faulthandler writes from a signal handler in C, so that it answers also while Python is stuck in a call.
"""

import asyncio
import faulthandler
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_SIGNAL = signal.SIGUSR2
"""Nodes of a scheduler block SIGUSR1 for everything that they start (rlrun.runner.submission.node)."""
_POLL_SECONDS = 0.02
_WRITE_SECONDS = 2.0
"""How long a process may take to write its stacks: milliseconds, unless the host swaps."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_OWN = re.compile(r"/(rlrun/(?:api|cli|converters|models|plugins|runner|specs)/.+)")
"""The path of a module of rlrun, wherever it is installed."""


class Frame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str

    @property
    def own_path(self) -> str | None:
        """The file from `rlrun/` on; None if it is not rlrun's."""
        match = _OWN.search(self.file)
        return match[1] if match else None

    def __str__(self) -> str:
        return f"{self.function} ({self.own_path or Path(self.file).name}:{self.line})"


def write_when_asked() -> None:
    """Makes this process write the stacks of all its threads to its standard error when it is asked."""
    faulthandler.register(_SIGNAL, file=sys.stderr, all_threads=True)


async def where(pid: int, log: Path) -> str:
    """Asks a process of this host for its stacks, which it writes to `log`; returns where it is.

    Example: `it is in recv (socket.py:718), called by train (rlrun/runner/trainer/roles/learner.py:90)`
    """
    start = _size(log)
    if problem := _ask(pid, log):
        return problem
    size = start
    for _ in range(round(_WRITE_SECONDS / _POLL_SECONDS)):
        await asyncio.sleep(_POLL_SECONDS)
        before, size = size, _size(log)
        if size > start and size == before:
            break
    stacks = read_stacks(_text_after(log, start))
    return describe(stacks) if stacks else "it did not write its stack"


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _text_after(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def _ask(pid: int, log: Path) -> str:
    """Asks for the stacks; returns why the process cannot write them, "" if it can.

    The signal ends a process that does not handle it, so such a process is not asked; nor is one of the same
    number on this host where the process is on another one, whose standard error is not this log.
    """
    with suppress(psutil.Error, OSError, ValueError):
        if not log.samefile(f"/proc/{pid}/fd/2"):
            return "its process is not on this host"
        if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            return "its process is stopped (SIGSTOP)"
        if _handled(pid) >> (_SIGNAL - 1) & 1:
            os.kill(pid, _SIGNAL)
            return ""
        return "its process does not write its stack"
    return "its process has ended, or is on another host"


def _handled(pid: int) -> int:
    """Returns the signals that a process handles, as Linux has them: bit n - 1 for signal n."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [text] = [line.partition(":")[2] for line in lines if line.startswith("SigCgt")]
    return int(text, 16)


def read_stacks(text: str) -> list[list[Frame]]:
    """Returns the stack of each thread in what faulthandler wrote, the innermost call first."""
    stacks: list[list[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            stacks.append([])
        elif stacks and (match := _FRAME.match(line)):
            stacks[-1].append(Frame(match["file"], int(match["line"]), match["function"]))
    return [stack for stack in stacks if stack]


def describe(stacks: Sequence[Sequence[Frame]]) -> str:
    """Returns where a process is: the innermost call of the thread with most of rlrun's code, and its caller.

    Other threads wait for calls of the driver, or belong to libraries.
    """
    stack = max(stacks, key=lambda frames: sum(frame.own_path is not None for frame in frames))
    innermost = stack[0]
    caller = next((frame for frame in stack if frame.own_path is not None), innermost)
    return f"it is in {innermost}" if caller is innermost else f"it is in {innermost}, called by {caller}"
