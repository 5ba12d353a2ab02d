"""Runs programs in sandboxes: `jail` isolates a program, `jailed` feeds and ends it."""

import secrets
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field

from rlrun.plugins.failures import Failure, InfrastructureError
from rlrun.plugins.rewards.code.cgroup import memory_cgroups
from rlrun.plugins.rewards.code.jail.memory import can_be_watched
from rlrun.plugins.rewards.code.jail.system_calls import host_filter
from rlrun.plugins.rewards.code.jailed import Channel, Ending, Jailed, attend
from rlrun.specs.sections.section import Section

MIB = 1 << 20
_TRIAL = "print('ready')"
_TRIAL_SECONDS = 60.0
"""Time of the trial program. A busy machine may need longer to start it than programs are allowed to take."""
MemoryHeldBy = Literal["a cgroup", "watching", "nothing"]


class Limits(Section):
    """The limits of a program."""

    timeout: float = Field(default=5.0, gt=0)
    """Seconds for a program; after that it is killed with everything that it started."""
    memory: int = Field(default=512, ge=64)
    """Memory of a program in MiB: both the address space of each process and the memory of all processes
    together."""
    processes: int = Field(default=8, ge=1)
    """Number of processes and threads that a program may have."""
    scratch: int = Field(default=16, ge=1)
    """MiB of files that a program may write, in a scratch folder that is removed afterwards."""
    output: int = Field(default=100_000, ge=1)
    """Number of bytes that a program may print; a program that prints more is ended."""


class SandboxError(RuntimeError):
    """This machine cannot isolate programs."""


class Sandbox:
    """Runs programs, each in a jail of its own. Several threads may share a sandbox."""

    def __init__(self, limits: Limits) -> None:
        """Runs a trial program. Raises SandboxError, with the reason, if this machine cannot isolate it."""
        self._limits = limits
        try:
            self._filter = host_filter()
        except ValueError as error:
            raise SandboxError(f"programs cannot be isolated on this machine: {error}") from error
        self._users = _spare_users()
        self._cgroups = memory_cgroups((limits.memory + limits.scratch) * MIB)
        ending = self._try_out()
        if ending.output != b"ready\n":
            raise SandboxError(
                f"programs cannot be isolated on this machine ({ending.problem or 'no output'}); that "
                "needs Linux 5.12 and root, or user namespaces (sysctl user.max_user_namespaces)"
            )

    @property
    def memory_is_held_by(self) -> MemoryHeldBy:
        """The mechanism that limits the memory of all processes of a program together."""
        if self._cgroups is not None:
            return "a cgroup"
        return "watching" if can_be_watched() else "nothing"

    def watch_memory(self) -> None:
        """Stops using cgroups: memory is watched instead, as on hosts that do not allow cgroups."""
        self._cgroups = None

    def run(
        self, program: str, stdin: bytes, request: bytes | None = None, seconds: float | None = None
    ) -> Ending:
        """Runs a program for at most `seconds` (None: the limit's) and returns its ending.

        All its processes have ended by then. It can read `request` from descriptor 3. Raises
        InfrastructureError if this machine has no memory, processes or descriptors left for it.
        """
        with _infrastructure():
            return self._run(program, stdin, request, self._allowed(seconds))

    def run_beside(self, judge: str, program: str, seconds: float | None = None) -> Ending:
        """Runs two programs that are connected by descriptors 3 and 4, and returns the ending of `judge`.

        They share nothing else. `program` is killed when `judge` ends. Raises InfrastructureError as `run`.
        """
        with _infrastructure(), ExitStack() as stack:
            its, judges = Channel.between()
            stack.callback(judges.close_inside)
            started = self._start(stack, program, b"", its)
            asking = self._start(stack, judge, b"", judges)
            attend([asking, started], self._allowed(seconds), self._limits.output)
        return asking.ending()

    def _run(self, program: str, stdin: bytes, request: bytes | None, seconds: float) -> Ending:
        channel = Channel() if request is None else Channel.to_here()
        with ExitStack() as stack:
            jailed = self._start(stack, program, stdin, channel, request or b"")
            attend([jailed], seconds, self._limits.output)
        return jailed.ending()

    def _start(
        self, stack: ExitStack, program: str, stdin: bytes, channel: Channel, request: bytes = b""
    ) -> Jailed:
        group = stack.enter_context(self._cgroups.new_group()) if self._cgroups else None
        settings = {**self._settings(), "program": program.encode(errors="surrogatepass")}
        return stack.enter_context(Jailed(settings, stdin, channel, request, group))

    def _try_out(self) -> Ending:
        try:
            return self._run(_TRIAL, b"", None, _TRIAL_SECONDS)
        except OSError:
            if self._cgroups is None:
                raise
        self._cgroups = None  # this process may create cgroups, but not move processes into them
        return self._run(_TRIAL, b"", None, _TRIAL_SECONDS)

    def _allowed(self, seconds: float | None) -> float:
        return self._limits.timeout if seconds is None else min(seconds, self._limits.timeout)

    def _settings(self) -> dict[str, object]:
        limits = self._limits
        first, number = self._users
        return {
            "python": [sys.executable, *_python_folders()],
            "memory": limits.memory * MIB,
            "watched": limits.memory * MIB if self.memory_is_held_by == "watching" else 0,
            "cpu": int(limits.timeout) + 1,
            "processes": limits.processes,
            "scratch": limits.scratch * MIB,
            "user": first + secrets.randbelow(number),
            "filter": self._filter,
        }


@contextmanager
def _infrastructure() -> Iterator[None]:
    """Raises InfrastructureError for an OSError, which no program in a jail can cause here."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(f"a sandbox cannot be started: {error}", Failure.SANDBOX) from error


def _spare_users() -> tuple[int, int]:
    """Returns the first and the number of the user ids for jails: the upper half of root's largest id range.

    The kernel counts processes per user, so each jail runs as a user of its own to have its own limit.
    """
    lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, number = max(((int(line[0]), int(line[2])) for line in lines), key=lambda ids: ids[1])
    return first + number // 2, number - number // 2 - 1


def _python_folders() -> list[str]:
    """Returns the folders of the interpreter, its library and its packages, outside /usr, /lib and /bin."""
    paths = sysconfig.get_paths()
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, paths["stdlib"], paths["purelib"]]
    folders.append(str(Path(sys.executable).resolve().parent))
    unique = sorted({str(Path(folder)) for folder in folders})
    system = ("/usr", "/lib", "/bin")
    inside = [f for f in unique if not any(f != g and f.startswith(g + "/") for g in unique)]
    return [folder for folder in inside if not folder.startswith(system)]
