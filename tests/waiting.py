"""How long tests wait for processes, in one place, and what they say when they waited in vain.

The deadline of a test measures nothing: it only ends a test that hangs. All tests share one, many times what
the slowest of them takes on two cores, so that a machine full of other work does not fail them. pytest's own
limit, of a test with its fixtures (`timeout` in pyproject.toml), is longer: these messages come first.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

PATIENCE = 3000.0
"""Seconds."""
_POLL_SECONDS = 0.02
_TAIL = 3000
"""Characters of a log that a message shows."""


def wait_until(condition: Callable[[], bool], what: str, log: Callable[[], str] = str) -> None:
    """Waits until the condition holds. AssertionError says what was waited for, with the end of the log."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, _in_vain(what, log())
        time.sleep(_POLL_SECONDS)


async def until(condition: Callable[[], bool], what: str) -> None:
    """The same on an event loop."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, _in_vain(what)
        await asyncio.sleep(0.001)


def wait_for_all(processes: Sequence["Popen[Any]"], logs: Iterable[Path], what: str) -> None:
    """Waits until all processes have ended well, and kills the rest when one fails.

    AssertionError says which failed, or what was waited for, with the ends of the logs.
    """

    def tails() -> str:
        return "\n----\n".join(log.read_text(errors="replace")[-_TAIL:] for log in logs)

    def codes() -> list[int | None]:
        return [process.poll() for process in processes]

    try:
        wait_until(lambda: None not in codes() or any(codes()), what, tails)
        ended = codes()
        assert not any(ended), f"{what}: the processes ended with {ended}:\n{tails()}"
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for_ends(processes: Sequence[psutil.Process]) -> None:
    """Waits until none of the processes runs; one that ended stays a zombie where nothing reaps it."""

    def runs(process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    wait_until(lambda: not any(map(runs, processes)), f"the end of {processes}")


def _in_vain(what: str, log: str = "") -> str:
    return f"waited {PATIENCE:g} s in vain for {what}\n{log[-_TAIL:]}"
