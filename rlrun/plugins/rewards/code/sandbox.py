"""Runs programs locked in: `jail` does the locking, this module the feeding and the killing."""

import os
import secrets
import sys
import sysconfig
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlrun.plugins.rewards.code.cgroup import memory_cgroups
from rlrun.plugins.rewards.code.jail.memory import can_be_watched
from rlrun.plugins.rewards.code.jail.system_calls import host_filter
from rlrun.plugins.rewards.code.jailed import Channel, Ending, Jailed, attend

MIB = 1 << 20
MemoryHeldBy = Literal["a cgroup", "watching", "nothing"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use."""

    seconds: float
    """Of wall-clock time."""
    memory: int
    """MiB: address space of each process, and memory of all processes together."""
    processes: int
    """Processes and threads."""
    scratch: int
    """MiB of files."""
    output: int
    """Bytes it may print; more ends it."""


class SandboxError(RuntimeError):
    """No program can be locked in on this machine."""


class Sandbox:
    """Runs programs, each in a jail of its own; may be used by several threads."""

    def __init__(self, limits: Limits) -> None:
        """Tries itself out; SandboxError says what this machine does not allow."""
        self._limits = limits
        self._folder = _mount_point()
        try:
            self._filter = host_filter()
        except ValueError as error:
            raise SandboxError(f"programs cannot be locked in on this machine: {error}") from error
        self._users = _spare_users()
        self._cgroups = memory_cgroups((limits.memory + limits.scratch) * MIB)
        ending = self._try_out()
        if ending.output != b"ready\n":
            raise SandboxError(
                f"programs cannot be locked in on this machine ({ending.problem or 'no output'}); that "
                "needs Linux 5.12 and root, or user namespaces (sysctl user.max_user_namespaces)"
            )

    @property
    def memory_is_held_by(self) -> MemoryHeldBy:
        """What limits the memory of all processes of a program together."""
        if self._cgroups is not None:
            return "a cgroup"
        return "watching" if can_be_watched() else "nothing"

    def watch_memory(self) -> None:
        """From now on, watches what programs use, as on hosts where it may not make cgroups."""
        self._cgroups = None

    def run(
        self, program: str, stdin: bytes, request: bytes | None = None, seconds: float | None = None
    ) -> Ending:
        """The program's ending, at most `seconds` (None: the limit's) later and with all its processes gone.

        `request` is what it can read from descriptor 3.
        """
        channel = Channel() if request is None else Channel.to_here()
        with ExitStack() as stack:
            jailed = self._start(stack, program, stdin, channel, request or b"")
            attend([jailed], self._allowed(seconds), self._limits.output)
        return jailed.ending()

    def run_beside(self, judge: str, program: str, seconds: float | None = None) -> Ending:
        """The ending of `judge`, which runs beside the program and speaks with it on descriptors 3 and 4.

        They share nothing else. The program is killed when the judge ends.
        """
        its, judges = Channel.between()
        with ExitStack() as stack:
            stack.callback(judges.close_inside)
            asked = self._start(stack, program, b"", its)
            asking = self._start(stack, judge, b"", judges)
            attend([asking, asked], self._allowed(seconds), self._limits.output)
        return asking.ending()

    def _start(
        self, stack: ExitStack, program: str, stdin: bytes, channel: Channel, request: bytes = b""
    ) -> Jailed:
        group = stack.enter_context(self._cgroups.one()) if self._cgroups else None
        settings = {**self._settings(), "program": program.encode(errors="surrogatepass")}
        return stack.enter_context(Jailed(settings, stdin, channel, request, group))

    def _try_out(self) -> Ending:
        try:
            return self.run("print('ready')", b"")
        except OSError:
            if self._cgroups is None:
                raise
        self._cgroups = None  # it could be made, but not joined
        return self.run("print('ready')", b"")

    def _allowed(self, seconds: float | None) -> float:
        return self._limits.seconds if seconds is None else min(seconds, self._limits.seconds)

    def _settings(self) -> dict[str, object]:
        limits = self._limits
        first, number = self._users
        return {
            "folder": str(self._folder),
            "python": [sys.executable, *_python_folders()],
            "memory": limits.memory * MIB,
            "watched": limits.memory * MIB if self.memory_is_held_by == "watching" else 0,
            "cpu": int(limits.seconds) + 1,
            "processes": limits.processes,
            "scratch": limits.scratch * MIB,
            "user": first + secrets.randbelow(number),
            "filter": self._filter,
        }


def _mount_point() -> Path:
    """An empty folder that every jail mounts its own root on, for itself alone; one a user."""
    folder = Path(tempfile.gettempdir()) / f"rlrun-jail-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise SandboxError(f"{folder} belongs to somebody else; remove it")
    return folder


def _spare_users() -> tuple[int, int]:
    """First and number of the user ids that root may choose from: the upper half of the largest range it has.

    Each jail gets one of its own, so that its limits are its own too.
    """
    lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, number = max(((int(line[0]), int(line[2])) for line in lines), key=lambda each: each[1])
    return first + number // 2, number - number // 2 - 1


def _python_folders() -> list[str]:
    """Where the interpreter, its library and its packages lie."""
    paths = sysconfig.get_paths()
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, paths["stdlib"], paths["purelib"]]
    folders.append(str(Path(sys.executable).resolve().parent))
    unique = sorted({str(Path(folder)) for folder in folders})
    system = ("/usr", "/lib", "/bin")
    inside = [f for f in unique if not any(f != g and f.startswith(g + "/") for g in unique)]
    return [folder for folder in inside if not folder.startswith(system)]
