"""Process 1 of a jail: builds the file system, starts the program, and reaps processes that end."""

from __future__ import annotations

import os
import resource

from rlrun.plugins.rewards.code.jail import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", "/dev/null", "/dev/urandom")
"""The paths of the system that a program sees.

`/dev/zero` is missing on purpose: mapping it gives memory that is not counted for any process.
"""
ROOT = "/proc"
"""The folder on which each jail mounts its root, in its own mount namespace.

It exists on every host, no user can take its place, and a program needs nothing of what it hides.
"""
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/scratch",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Without the thread settings, NumPy starts a thread per processor, which exceeds a program's limit."""
OWN_PROCESSES = 2
"""Launcher and init, which count towards the program's limit of processes if they run as its user."""


def run_init(settings: dict[str, Any], alive: int) -> NoReturn:
    """Runs as process 1, and exits with the program's status when the program ends.

    The kernel then kills all remaining processes of the namespace. `alive` is a pipe that the launcher holds
    open without writing to it: at its end, the launcher has died.
    """
    kernel.die_with_parent()
    os.set_blocking(alive, False)
    if _has_hung_up(alive):  # the launcher died before die_with_parent took effect
        os._exit(kernel.JAIL_FAILED)
    kernel.hide_memory()
    kernel.forget_interrupts()
    if not kernel.unshare(kernel.NEW_MOUNTS):
        kernel.fail("unshare")
    _build_root(settings["python"], settings["scratch"])
    with open("/scratch/program.py", "wb") as file:  # noqa: PTH123
        file.write(settings["program"])
    child = os.fork()
    if not child:
        _start(settings)
    os.closerange(0, 1 << 20)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _has_hung_up(pipe: int) -> bool:
    try:
        return not os.read(pipe, 1)
    except BlockingIOError:
        return False


def _build_root(python: list[str], scratch: int) -> None:
    """Builds a root of read-only bind mounts, on a tmpfs that exists only in this mount namespace."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", ROOT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    for path in dict.fromkeys([*SYSTEM, *python[1:]]):
        if path in SYSTEM and os.path.islink(path):  # noqa: PTH114 - /lib; a link to an environment is bound
            os.symlink(os.readlink(path), ROOT + path)  # noqa: PTH115, PTH211
        elif os.path.exists(path):  # noqa: PTH110
            _bind(path, ROOT + path)
    os.mkdir(f"{ROOT}/scratch")  # noqa: PTH102
    kernel.make_read_only(ROOT)
    options = f"size={scratch},nr_inodes=1000,mode=777"
    kernel.mount("tmpfs", f"{ROOT}/scratch", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    os.chroot(ROOT)
    os.chdir("/")


def _bind(path: str, to: str) -> None:
    if os.path.isdir(path):  # noqa: PTH112
        os.makedirs(to, exist_ok=True)  # noqa: PTH103
    else:
        os.makedirs(os.path.dirname(to), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(to, os.O_CREAT))
    kernel.mount(path, to, "", kernel.MS_BIND | kernel.MS_REC)


def _start(settings: dict[str, Any]) -> NoReturn:
    """Replaces this process by the program, without privileges and within its limits."""
    os.setsid()  # otherwise, the program's kill(0, …) would reach the launcher
    kernel.keep_only(settings["channel"])
    if settings["privileged"]:
        _become(settings["user"])
    _limit(settings)
    os.chdir("/scratch")
    python = settings["python"][0]
    kernel.forbid(settings["filter"])
    os.execve(python, [python, "-I", "/scratch/program.py"], ENVIRONMENT)


def _become(user: int) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def _limit(settings: dict[str, Any]) -> None:
    own_processes = 0 if settings["privileged"] else OWN_PROCESSES
    for resource_kind, limit in (
        (resource.RLIMIT_AS, settings["memory"]),
        (resource.RLIMIT_CPU, settings["cpu"]),
        (resource.RLIMIT_NPROC, settings["processes"] + own_processes),
        (resource.RLIMIT_FSIZE, settings["scratch"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_SIGPENDING, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(resource_kind, (limit, limit))
