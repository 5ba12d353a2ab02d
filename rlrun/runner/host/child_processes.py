"""Finds and ends the processes that a job started on this host, also when its driver was killed."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from rlrun.plugins.launch_variable import LAUNCH_VARIABLE

_WAIT_SECONDS = 3.0
_PROGRAM = Path(__file__).with_name("guardian_program.py")
_END_SECONDS = 10.0

guardians: set[int] = set()
"""Ids of the guardians of this process, which are not killed together with the processes of a launch."""


def children() -> set[psutil.Process]:
    """Returns every process that this process started, and those that they started in turn; no guardian."""
    below = psutil.Process().children(recursive=True)
    return {process for process in below if process.pid not in guardians}


def end_or_kill(processes: Iterable[psutil.Process], wait: float = _WAIT_SECONDS) -> None:
    """Waits `wait` seconds for processes to end by themselves, then kills them."""
    _, running = psutil.wait_procs(list(processes), timeout=wait)
    for process in running:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(running, timeout=_WAIT_SECONDS)


def kill(pids: Iterable[int]) -> None:
    """Kills processes of this host by their ids, including suspended ones."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def kill_children() -> None:
    """Kills every process that this process started."""
    end_or_kill(children(), wait=0.0)


class Guardian:
    """The process that outlives the driver by a moment.

        driver ──pipe──▶ guardian ── end of the pipe ──▶ kills what the launch left

    The kernel closes the pipe however the driver ends. Processes of a launch are recognised by a variable
    that all of them inherit. Ray's processes overwrite their environment with a title, so their sessions are
    noted, too. Most processes of a job end with the driver anyway; those that Ray's raylet or an agent's
    program has just started would not notice for up to a minute.
    """

    def __init__(self, launch: str) -> None:
        """`launch` is a name that no other launch on this host has."""
        mark = f"{LAUNCH_VARIABLE}={launch}"
        without = {name: value for name, value in os.environ.items() if name != LAUNCH_VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=without,
            cwd="/",
            start_new_session=True,  # signals of the terminal do not reach it
        )
        guardians.add(self._process.pid)

    def note_session(self, session: int) -> None:
        """Makes it also end the processes of a session that the launch began."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{session}\n".encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """Lets it end what is left, and waits until it has."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        guardians.discard(self._process.pid)


@contextmanager
def guarded(launch: str) -> Iterator[Guardian]:
    """Ends every process that is started in this block when the block ends, or this process does."""
    before = os.environ.get(LAUNCH_VARIABLE)
    os.environ[LAUNCH_VARIABLE] = launch
    guardian = Guardian(launch)
    try:
        yield guardian
    finally:
        del os.environ[LAUNCH_VARIABLE]
        if before is not None:
            os.environ[LAUNCH_VARIABLE] = before
        guardian.close()
