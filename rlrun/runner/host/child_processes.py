"""Finds and ends the processes that a job started on this host."""

from collections.abc import Iterable
from contextlib import suppress

import psutil

from rlrun.runner.host.guardian import guardians

_WAIT_SECONDS = 3.0


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
