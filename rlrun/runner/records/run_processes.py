"""The processes of a run on this host, and where each of them is now."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlrun.runner.host.stacks import where
from rlrun.runner.records.run_folder import RunFolder


@dataclass(frozen=True)
class RunProcess:
    """One process, by the log that it writes."""

    log: str
    """Name of the log: `trainer-0` for `logs/trainer-0.log`."""
    pid: int
    memory: int
    """Bytes of host memory that it holds (resident)."""
    where: str
    """The call that it is in, as `it is in wait (threading.py:327)`, or why that is not known."""


async def read_processes(run: RunFolder) -> list[RunProcess]:
    """Returns the processes of this host whose standard error is a log of the run.

    Each rank, engine and reward process is asked for its stack, which it also writes to its log: one after
    the other, since several may share a log. Programs that do not write theirs, such as an SGLang server,
    are listed without.
    """
    found = []
    for process, log in _processes_by_log(sorted(run.logs.glob("*.log"))):
        memory = _memory(process)
        if memory is not None:
            found.append(RunProcess(log.stem, process.pid, memory, await where(process.pid, log)))
    return found


def _processes_by_log(logs: list[Path]) -> Iterator[tuple[psutil.Process, Path]]:
    """Yields each process that writes to one of the logs, in the order of the logs."""
    by_file = {_identity(log): log for log in logs}
    writing: list[tuple[psutil.Process, Path]] = []
    for process in psutil.process_iter():
        with suppress(OSError):  # it has ended, or is another user's
            log = by_file.get(_identity(Path(f"/proc/{process.pid}/fd/2")))
            if log is not None:
                writing.append((process, log))
    yield from sorted(writing, key=lambda entry: (logs.index(entry[1]), entry[0].pid))


def _identity(path: Path) -> tuple[int, int]:
    """Returns what two paths of one file have in common."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _memory(process: psutil.Process) -> int | None:
    """Returns the bytes that a process holds; None if it has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return None
