"""System calls that Python does not offer. A failed call ends the process."""

from __future__ import annotations

import ctypes
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NEW_USER, NEW_PID, NEW_NET, NEW_MOUNTS, NEW_IPC, NEW_UTS = (
    0x10000000,
    0x20000000,
    0x40000000,
    0x00020000,
    0x08000000,
    0x04000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
SIGINT, SIGKILL = 2, 9
JAIL_FAILED = 113
"""Exit status of a jail that could not be built."""

_libc = ctypes.CDLL(None, use_errno=True)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def fail(operation: str) -> None:
    """Writes what failed, with the kernel's reason, to standard error, and exits."""
    error = os.strerror(ctypes.get_errno())
    os.write(2, f"jail: {operation}: {error}\n".encode())
    os._exit(JAIL_FAILED)


def unshare(spaces: int) -> bool:
    """Moves this process into new namespaces; returns whether the kernel allowed it."""
    return bool(_libc.unshare(spaces) == 0)


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends.

    A change of user or group clears the setting, and a forked child does not inherit it.
    """
    _check(_libc.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")


def hide_memory() -> None:
    """Keeps other processes of the same user from tracing this one and from reading its memory."""
    _check(_libc.prctl(SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


def forget_interrupts() -> None:
    """Removes Python's handler of SIGINT. Process 1 of a namespace ignores signals without a handler, so the
    program cannot interrupt it.
    """
    _libc.signal(SIGINT, None)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Calls mount(2)."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    _check(result, f"mount {target}")


def make_read_only(folder: str) -> None:
    """Makes a mount and all mounts below it read-only."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        MOUNT_SETATTR, AT_FDCWD, folder.encode(), AT_RECURSIVE, ctypes.byref(attributes), 32
    )
    _check(result, "mount_setattr")


def forbid(instructions: bytes) -> None:
    """Installs a seccomp filter of 8 bytes per instruction for good, in this process and its children."""
    _check(_libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    program = _FilterProgram(len(instructions) // 8, instructions)
    _check(_libc.prctl(SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def keep_only(descriptors: Iterable[int]) -> None:
    """Moves the given descriptors to 3, 4, …, and closes all others but 0, 1 and 2."""
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 32) for descriptor in descriptors]
    for number, copy in enumerate(copies, 3):
        os.dup2(copy, number)
    os.closerange(3 + len(copies), 1 << 20)


def _check(result: int, operation: str) -> None:
    if result < 0:
        fail(operation)
