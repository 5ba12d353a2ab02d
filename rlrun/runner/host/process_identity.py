"""Identifies the process that runs a job, even after its process id was reused for another process.

A process id is unique only on one host, during one boot, and in one namespace of process ids: two containers
may have the same host name and the same process ids.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

MAX_PID = 1 << 22
"""The largest process id that Linux allows."""
_DEAD = {"Z", "X", "x"}
"""States of a process that has ended but was not yet waited for by its parent."""


class Owner(BaseModel):
    """The identity of one process."""

    model_config = ConfigDict(strict=True, frozen=True)

    pid: int = Field(ge=1, le=MAX_PID)
    host: str
    boot_id: str = ""
    """Random id that the kernel generates at every boot."""
    pid_namespace: int = 0
    """Inode of the namespace that `pid` belongs to."""
    start_ticks: int = 0
    """Start of the process in clock ticks since the boot, which setting the clock does not change."""

    @classmethod
    def current(cls) -> Self:
        """Returns the identity of this process."""
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
        """Whether the process belongs to this host, boot and namespace, so that `pid` can be looked up."""
        own_host = (socket.gethostname(), boot_id(), pid_namespace())
        return bool(self.boot_id) and (self.host, self.boot_id, self.pid_namespace) == own_host

    @property
    def is_running(self) -> bool:
        """Whether the process still runs; meaningful only if it `is_here`."""
        return self.start_ticks > 0 and _start_ticks(self.pid) == self.start_ticks


def boot_id() -> str:
    """Returns the id of this boot of the kernel; empty on systems other than Linux."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def pid_namespace() -> int:
    """Returns the inode of this process's namespace of process ids; 0 on systems other than Linux."""
    with suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0


def _start_ticks(pid: int) -> int | None:
    """Returns the start of a process in clock ticks; None if it does not exist or has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = status.rpartition(")")[2].split()  # the program's name may contain spaces and brackets
    return None if state in _DEAD else int(fields[18])
