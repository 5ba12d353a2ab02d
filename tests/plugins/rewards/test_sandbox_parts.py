"""The sandbox's parts: which system calls its filter lets through, and the cgroups that it makes."""

import errno
import os
import struct
from pathlib import Path

import pytest

from rlrun.plugins.rewards.code.cgroup import PREFIX, MemoryCgroups
from rlrun.plugins.rewards.code.jail.system_calls import filter_for

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}


def answer(machine: str, architecture: str, number: int, *arguments: int) -> int:
    """What the filter answers: a machine for the few instructions that it is made of."""
    data = struct.pack(
        "<iIQ6Q", number, ARCHITECTURES[architecture], 0, *arguments, *[0] * (6 - len(arguments))
    )
    program = list(struct.iter_unpack("<HBBI", filter_for(machine)))
    at = accumulator = 0
    while True:
        code, jump_true, jump_false, constant = program[at]
        at += 1
        if code == 0x06:
            return int(constant)
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:
            accumulator &= constant
        else:
            holds = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: accumulator & constant,
            }
            at += jump_true if holds[code] else jump_false


@pytest.mark.parametrize(
    ("numbers", "arguments", "error"),
    [
        ((0, 63), (), 0),  # read
        ((59, 221), (), 0),  # execve
        ((202, 98), (), 0),  # futex
        ((56, 220), (0x3D0F00,), 0),  # clone, as threads do
        ((56, 220), (0x1200011,), 0),  # clone, as fork does
        ((56, 220), (0x4111,), 0),  # clone, as posix_spawn does
        ((56, 220), (0x4011,), errno.EPERM),  # waits, but has memory of its own
        *[
            ((56, 220), (space,), errno.EPERM)
            for space in (1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)
        ],
        ((435, 435), (), errno.ENOSYS),  # clone3
        ((9, 222), (0, 4096, 3, 0x22), 0),  # mmap: private, anonymous
        ((9, 222), (0, 4096, 3, 0x21), errno.EPERM),  # shared, anonymous
        ((9, 222), (0, 4096, 3, 0x01, 5), 0),  # shared, of a file
        ((9, 222), (0, 4096, 3, 0x40022), errno.EPERM),  # huge pages
        ((72, 25), (1, 3), 0),  # fcntl: flags
        ((72, 25), (1, 1031, 1 << 20), errno.EPERM),  # pipe size
        ((16, 29), (0, 0x5401), 0),  # isatty
        ((16, 29), (0, 0x5412), errno.ENOTTY),  # TIOCSTI
        ((194, 11), (), errno.ENOTSUP),  # listxattr
        ((199, 16), (), errno.ENOTSUP),  # fremovexattr
        ((53, 199), (1, 0x80801), 0),  # socketpair
        ((53, 199), (1, 2), errno.EPERM),  # of datagrams
        ((53, 199), (16, 1), errno.EPERM),  # of netlink
        ((41, 198), (2, 1), errno.ENETUNREACH),  # socket
        ((157, 167), (15,), 0),  # prctl: a name
        ((157, 167), (22, 2), errno.EINVAL),  # seccomp
        ((302, 261), (0, 7), 0),  # prlimit64 of itself
        ((302, 261), (1, 7), errno.EPERM),  # of init
        ((141, 140), (0, 0), 0),  # setpriority of itself
        ((141, 140), (0, 1), errno.EPERM),  # of init
        ((141, 140), (2, 0), errno.EPERM),  # of all processes of the user
        ((54, 208), (), errno.ENOSYS),  # setsockopt
        ((46, 211), (), errno.ENOSYS),  # sendmsg
        ((425, 425), (), errno.ENOSYS),  # io_uring_setup
        ((319, 279), (), errno.ENOSYS),  # memfd_create
        ((29, 194), (), errno.ENOSYS),  # shmget
        ((323, 282), (), errno.ENOSYS),  # userfaultfd
        ((250, 219), (), errno.ENOSYS),  # keyctl
        ((272, 97), (), errno.ENOSYS),  # unshare
        ((101, 117), (), errno.ENOSYS),  # ptrace
        ((999, 999), (), errno.ENOSYS),  # what comes after us
    ],
)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_the_filter_answers(
    machine: str, numbers: tuple[int, int], arguments: tuple[int, ...], error: int
) -> None:
    number = numbers[machine == "aarch64"]
    assert answer(machine, machine, number, *arguments) == (ERRNO | error if error else ALLOW)


@pytest.mark.parametrize(
    ("numbers", "arguments"),
    [
        ((73, 32), (3, 2)),  # flock
        *[((72, 25), (3, command)) for command in (6, 7, 37, 38)],  # fcntl: F_SETLK and its like
    ],
)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_locks_succeed_without_effect(
    machine: str, numbers: tuple[int, int], arguments: tuple[int, ...]
) -> None:
    assert answer(machine, machine, numbers[machine == "aarch64"], *arguments) == ERRNO | 0


@pytest.mark.parametrize(
    ("machine", "architecture", "number"),
    [
        ("x86_64", "i386", 3),
        ("x86_64", "x86_64", 0x40000000),
        ("aarch64", "arm", 3),
        ("aarch64", "x86_64", 0),
    ],
)
def test_calls_by_other_tables_kill(machine: str, architecture: str, number: int) -> None:
    assert answer(machine, architecture, number) == KILL


def test_a_machine_without_a_table() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        filter_for("riscv64")


def test_cgroups_of_dead_processes_are_swept(tmp_path: Path) -> None:
    alive, dead, foreign = (f"{PREFIX}{os.getpid()}-0", f"{PREFIX}999999999-0", "another")
    new_elsewhere = f"{PREFIX}999999998-0"  # of a process in another container, which has not filled it yet
    for name in (alive, dead, foreign, new_elsewhere):
        (tmp_path / name).mkdir()
        if name != new_elsewhere:
            os.utime(tmp_path / name, (0, 0))
    MemoryCgroups(tmp_path, 1, 2).sweep()
    assert {entry.name for entry in tmp_path.iterdir()} == {alive, foreign, new_elsewhere}


@pytest.mark.parametrize(
    ("version", "present", "written"),
    [
        (1, ("memory.limit_in_bytes",), {"memory.limit_in_bytes": "7"}),
        (2, ("memory.max", "memory.swap.max", "x"), {"memory.max": "7", "memory.swap.max": "0", "x": ""}),
    ],
)
def test_a_cgroup_has_its_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    present: tuple[str, ...],
    written: dict[str, str],
) -> None:
    make = Path.mkdir

    def mkdir(folder: Path) -> None:
        make(folder)
        for name in present:  # the kernel makes them
            (folder / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    folder = MemoryCgroups(tmp_path, 7, version).make()
    assert {entry.name: entry.read_text() for entry in folder.iterdir()} == written
