"""Identifies the process that runs a job, also after its process id was given to another process.

A process id means something only on the host, in the boot and in the namespace of process ids that it comes
from: two containers may have the same host name and the same process ids.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

MAX_PID = 1 << 22
"""Linux has no larger process ids."""
_DEAD = {"Z", "X", "x"}
"""States of a process that has ended, though its parent has not yet asked how."""


class Owner(BaseModel):
    """One process."""

    model_config = ConfigDict(strict=True, frozen=True)

    pid: int = Field(ge=1, le=MAX_PID)
    host: str
    boot_id: str = ""
    """The kernel draws one each time it starts."""
    pid_namespace: int = 0
    """Inode of the namespace that `pid` belongs to."""
    start_ticks: int = 0
    """When the process started, in clock ticks since the boot: no change of the clock changes it."""

    @classmethod
    def current(cls) -> Self:
        """Returns what identifies this process."""
        pid = os.getpid()
        return cls(
            pid=pid,
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid_namespace=pid_namespace(),
            start_ticks=_start_ticks(pid) or 0,
        )

    @property
    def is_here(self) -> bool:
        """Whether this process can look it up by its process id."""
        here = (socket.gethostname(), boot_id(), pid_namespace())
        return bool(self.boot_id) and (self.host, self.boot_id, self.pid_namespace) == here

    @property
    def is_running(self) -> bool:
        """Whether this very process still runs; ask only if it `is_here`."""
        return self.start_ticks > 0 and _start_ticks(self.pid) == self.start_ticks


def boot_id() -> str:
    """Returns the id of this boot of the kernel; empty on other systems than Linux."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def pid_namespace() -> int:
    """Returns the inode of this process's namespace of process ids; 0 on other systems than Linux."""
    with suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0


def _start_ticks(pid: int) -> int | None:
    """Returns when a process started; None if there is no such process, or it has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = status.rpartition(")")[2].split()  # the program's name may hold spaces and brackets
    return None if state in _DEAD else int(fields[18])
