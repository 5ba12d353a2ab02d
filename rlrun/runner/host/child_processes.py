"""Makes sure that nothing of a job is left on this host when it is over."""

from collections.abc import Iterable
from contextlib import suppress

import psutil

_WAIT_SECONDS = 3.0


def children() -> set[psutil.Process]:
    """Every process that this one started, and theirs."""
    return set(psutil.Process().children(recursive=True))


def end_or_kill(processes: Iterable[psutil.Process], wait: float = _WAIT_SECONDS) -> None:
    """Give processes `wait` seconds to end by themselves, then kill them."""
    _, left = psutil.wait_procs(list(processes), timeout=wait)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_WAIT_SECONDS)


def kill(pids: Iterable[int]) -> None:
    """Kill processes of this host by their ids, also those that are stopped."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def kill_children() -> None:
    """Kill everything that this process started."""
    end_or_kill(children(), wait=0.0)
