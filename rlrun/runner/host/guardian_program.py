"""A program that waits until its launch has ended, and then kills every process that the launch left.

    guardian_program.py MARK < pipe

It is started without site-packages and imports nothing of rlrun, so that it is ready within milliseconds.
`child_processes.py` starts it and documents what it does.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator

_ROUNDS, _PAUSE_SECONDS = 50, 0.05
"""Processes are looked for again until none is left: one that was starting another may have been missed."""


def main() -> None:
    """Reads ids of sessions until the end of standard input, and ends what belongs to the launch."""
    sessions = {int(line) for line in sys.stdin}
    for _ in range(_ROUNDS):
        if not end_processes(sys.argv[1].encode(), sessions):
            return
        time.sleep(_PAUSE_SECONDS)


def end_processes(mark: bytes, sessions: set[int]) -> int:
    """Kills every process with `mark` in its environment or in one of the sessions; returns their number."""
    number = 0
    for pid in _pids():
        try:
            process = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # the descriptor refers to the process that is looked at, even if its id is used again meanwhile
            if pid != os.getpid() and _belongs(pid, mark, sessions):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                number += 1
        except (OSError, ValueError):  # it has just ended
            pass
        finally:
            os.close(process)
    return number


def _pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:  # not Linux
        return
    yield from (int(name) for name in names if name.isdecimal())


def _belongs(pid: int, mark: bytes, sessions: set[int]) -> bool:
    state, _, _, session = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:4]
    if state in (b"Z", b"X"):
        return False
    return int(session) in sessions or mark in _read(f"/proc/{pid}/environ").split(b"\0")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


if __name__ == "__main__":
    main()
