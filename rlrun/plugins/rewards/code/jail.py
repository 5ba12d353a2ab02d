"""Locks itself in and becomes a Python that runs one program; started by rlrun.plugins.rewards.code.sandbox.

    argv[1]: the limits as JSON     descriptor argv[2]: the program     stdin, stdout, stderr: the program's

The program sees no network, no other process, a file system that is read-only but for a small scratch
folder, and of the disk only the system's libraries and the Python installation: no home, no data, no secrets.
It runs without privileges and under limits of memory, CPU seconds, processes and open files. Its processes
die with it.

Stand-alone on purpose: nothing of rlrun is imported here, so that it starts in milliseconds.
"""

import ctypes
import json
import os
import resource
import signal
import sys

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
SET_PDEATHSIG, SET_DUMPABLE, SET_NO_NEW_PRIVS = 1, 4, 38
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", "/dev/null", "/dev/zero", "/dev/urandom")
INSIDE = 1000
"""User id that the program believes to have, where user namespaces give it one."""
FIRST_SPARE_USER = 200_000
"""Started by root, each jail gets a user id of its own above this one, so that limits are its own too."""

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Never returns."""
    limits, source = json.loads(sys.argv[1]), int(sys.argv[2])
    libc.prctl(SET_PDEATHSIG, signal.SIGKILL)
    with os.fdopen(source, "rb") as file:
        program = file.read()
    root = os.geteuid() == 0
    spaces = NEW_PID | NEW_NET | NEW_MOUNTS | NEW_IPC | NEW_UTS | (0 if root else NEW_USER)
    user, group = os.getuid(), os.getgid()
    _check(libc.unshare(spaces), "unshare")
    if not root:
        _map_ids(user, group)
    _build_root(limits["folder"], limits["python"], limits["scratch"])
    with open("/scratch/program.py", "wb") as file:  # noqa: PTH123 (pathlib would cost milliseconds)
        file.write(program)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) % 256)
    libc.prctl(SET_PDEATHSIG, signal.SIGKILL)
    if root:
        _become(FIRST_SPARE_USER + os.getpid() + limits["number"])
    _limit(limits)
    _check(libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    os.chdir("/scratch")
    python = limits["python"][0]
    os.execve(python, [python, "-I", "/scratch/program.py"], {"PATH": "/usr/bin:/bin", "HOME": "/scratch"})


def _map_ids(user: int, group: int) -> None:
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INSIDE} {user} 1"),
        ("gid_map", f"{INSIDE} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(text)


def _build_root(folder: str, python: list[str], scratch: int) -> None:
    """A root of bind mounts, all read-only, on a tmpfs that only this mount namespace has."""
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in dict.fromkeys([*SYSTEM, *python[1:]]):
        if path in SYSTEM and os.path.islink(path):  # noqa: PTH114 - /lib; a link to an environment is bound
            os.symlink(os.readlink(path), folder + path)  # noqa: PTH115, PTH211
        elif os.path.exists(path):  # noqa: PTH110
            _bind(path, folder + path)
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY, 0, 0, 0)
    os.mkdir(f"{folder}/scratch")  # noqa: PTH102
    _check(
        libc.syscall(MOUNT_SETATTR, AT_FDCWD, folder.encode(), AT_RECURSIVE, ctypes.byref(attributes), 32),
        "mount_setattr",
    )
    _mount(
        "tmpfs", f"{folder}/scratch", "tmpfs", MS_NOSUID | MS_NODEV, f"size={scratch},nr_inodes=1000,mode=777"
    )
    os.chroot(folder)
    os.chdir("/")


def _bind(path: str, to: str) -> None:
    if os.path.isdir(path):  # noqa: PTH112
        os.makedirs(to, exist_ok=True)  # noqa: PTH103
    else:
        os.makedirs(os.path.dirname(to), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(to, os.O_CREAT))
    _mount(path, to, "", MS_BIND | MS_REC)


def _become(user: int) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def _limit(limits: dict[str, int]) -> None:
    for what, key in (
        (resource.RLIMIT_AS, "memory"),
        (resource.RLIMIT_CPU, "cpu"),
        (resource.RLIMIT_NPROC, "processes"),
        (resource.RLIMIT_FSIZE, "scratch"),
    ):
        resource.setrlimit(what, (limits[key], limits[key]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = libc.mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    _check(result, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result < 0:
        error = os.strerror(ctypes.get_errno())
        os.write(2, f"jail: {what}: {error}\n".encode())
        os._exit(JAIL_FAILED)


JAIL_FAILED = 113

if __name__ == "__main__":
    main()
