"""Makes sure that nothing of a job is left on this host when it is over."""

import re
import shutil
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

_WAIT_SECONDS = 3.0
_SEGMENT = re.compile(r"rlrun-.+-\d+\.(\d+)-\d+|torch_(\d+)_\d+_\d+")
"""Shared weights and the process that wrote them: ours, and torch's for SGLang servers."""


def children() -> set[psutil.Process]:
    """Every process that this one started, and theirs."""
    return set(psutil.Process().children(recursive=True))


def end(processes: Iterable[psutil.Process], wait: float = _WAIT_SECONDS) -> None:
    """Give processes `wait` seconds to end by themselves, then kill them."""
    _, left = psutil.wait_procs(list(processes), timeout=wait)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_WAIT_SECONDS)


def end_now() -> None:
    """Kill everything that this process started."""
    end(children(), wait=0.0)


def clean_up_after(state: Mapping[str, Any]) -> None:
    """Remove what a launch that was killed could not: `state` is the last that it wrote."""
    if state.get("host") == socket.gethostname():
        remove_segments(pid for pid in state.get("processes", {}).values() if not psutil.pid_exists(pid))
        if scratch := state.get("scratch"):
            shutil.rmtree(scratch, ignore_errors=True)


def remove_segments(pids: Iterable[int], folder: Path = Path("/dev/shm")) -> None:
    """Remove the shared weights that these processes, dead by now, left behind."""
    owners = set(pids)
    for path in folder.iterdir():
        found = _SEGMENT.fullmatch(path.name)
        if found and int(found[1] or found[2]) in owners:
            path.unlink(missing_ok=True)
