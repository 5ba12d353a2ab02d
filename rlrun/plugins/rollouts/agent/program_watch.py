"""Watches the processes of an agent's programs, and ends programs that exceed their limits.

A program is its session, the sessions that its processes begin, and all their children. All programs are
measured together, since each measurement reads every process of the host. When a program ends, daemons that
left it are known by its key in their environment.
"""

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

from rlrun.plugins.rewards.code.jail.memory import together_use_more_than
from rlrun.plugins.rollouts.agent.program_limits import MIB, ProgramLimits

PERIOD = 0.25
"""Seconds between two measurements; one takes 2 to 10 ms on a host with 130 processes."""

_DISK_PERIOD = 2.0
"""Seconds between two measurements of a folder; one takes 0.1 s for 10,000 files."""
_ENDING = 2.0
"""Seconds in which the processes that a program leaves are looked for and killed, until there are none."""
_BLOCK = 512
_PAUSE = 0.005
"""Seconds for killed processes to end, before others are looked for."""


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process of this host that has not ended."""

    id: int
    parent: int
    session: int


class HostProcesses:
    """The processes of this host at one moment, by session and by parent."""

    def __init__(self, processes: Iterable[HostProcess]) -> None:
        self._by_session: defaultdict[int, list[HostProcess]] = defaultdict(list)
        self._by_parent: defaultdict[int, list[HostProcess]] = defaultdict(list)
        self._by_id = {process.id: process for process in processes}
        for process in self._by_id.values():
            self._by_session[process.session].append(process)
            self._by_parent[process.parent].append(process)

    @classmethod
    def now(cls) -> Self:
        """Returns the processes, without those that have ended and wait for their parents."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (names alone)
            with suppress(OSError):  # the process has ended
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
                if state not in b"ZX":
                    found.append(HostProcess(int(name), int(parent), int(session)))
        return cls(found)

    def with_variable(self, variable: bytes) -> list[int]:
        """Returns the ids of processes that were started with this variable (`NAME=value`)."""
        found = []
        for process in self._by_id:
            with suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:  # noqa: PTH123
                if variable in file.read().split(b"\0"):  # an OSError: it has ended, or is another user's
                    found.append(process)
        return found

    def of(self, program: int, sessions: Iterable[int]) -> list[HostProcess]:
        """Returns a program's process, the processes of these sessions, and all their children with the
        sessions that these began.
        """
        found: dict[int, HostProcess] = {}
        known_sessions: set[int] = set()
        waiting = [self._by_id[program]] if program in self._by_id else []
        for session in sessions:
            waiting += self._by_session.get(session, ())
        while waiting:
            process = waiting.pop()
            if process.id in found:
                continue
            found[process.id] = process
            waiting += self._by_parent.get(process.id, ())
            if process.session not in known_sessions:
                known_sessions.add(process.session)
                waiting += self._by_session[process.session]
        return list(found.values())


@dataclass(slots=True, eq=False)
class WatchedProgram:
    """One program that runs."""

    id: int
    """Its process, which leads a session of its own."""
    limits: ProgramLimits
    output: Sequence[int]
    """The descriptors of the files with its output."""
    folder: str = ""
    """The folder of its execution; empty: none is measured."""
    mark: bytes = b""
    """A variable of its processes alone (`NAME=value`), by which daemons are known that left it unseen."""
    problem: str = ""
    """Which limit it exceeded."""
    measured: float = 0.0
    """When its folder was measured last, by the monotonic clock."""
    disk: int = 0
    """Bytes in its folder then."""
    sessions: set[int] = field(default_factory=set)
    """The sessions of its processes, also of those whose parents have ended."""

    def members(self, processes: HostProcesses) -> list[int]:
        """Returns the ids of its processes, and remembers their sessions."""
        own = processes.of(self.id, self.sessions | {self.id})
        self.sessions = {process.session for process in own}
        return [process.id for process in own]

    def check(self, processes: HostProcesses) -> None:
        """Ends the program if it exceeds a limit, and notes which."""
        members = self.members(processes)
        if not self.problem:
            self.problem = self.limits.exceeded(
                processes=len(members),
                output=sum(os.fstat(descriptor).st_size for descriptor in self.output),
                disk=self._measured_disk(),
                uses_more_memory=together_use_more_than(self.limits.memory * MIB, members),
            )
        if self.problem:
            _kill(members)

    def _measured_disk(self) -> int:
        if self.folder and time.monotonic() - self.measured > _DISK_PERIOD:
            self.disk = disk_usage(self.folder)
            self.measured = time.monotonic()
        return self.disk

    def end(self) -> None:
        """Kills all its processes, also those that they start meanwhile."""
        last = time.monotonic() + _ENDING
        while left := self._left(HostProcesses.now()):
            _kill(left)
            if time.monotonic() > last:
                break
            time.sleep(_PAUSE)

    def _left(self, processes: HostProcesses) -> set[int]:
        return {*self.members(processes), *(processes.with_variable(self.mark) if self.mark else ())}


class ProgramWatch:
    """Measures all programs of a rollout while any of them runs."""

    def __init__(self) -> None:
        self._programs: set[WatchedProgram] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, program: WatchedProgram) -> Iterator[None]:
        """Watches a program during the block."""
        self._programs.add(program)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._programs.discard(program)

    async def _watch(self) -> None:
        while self._programs:
            with suppress(OSError):  # no descriptor is free at the moment
                await asyncio.to_thread(_check, tuple(self._programs))
            await asyncio.sleep(PERIOD)


def disk_usage(folder: str) -> int:
    """Returns the bytes that the files below a folder take, each counted as often as it has names."""
    total, folders = 0, [folder]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:  # removed, or not readable
            for entry in entries:
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return total


def _check(programs: Iterable[WatchedProgram]) -> None:
    processes = HostProcesses.now()
    for program in programs:
        with suppress(OSError):  # it has just ended, and its files are closed
            program.check(processes)


def _kill(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or has become another user
            os.kill(process, signal.SIGKILL)
