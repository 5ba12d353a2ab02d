"""Memory cgroups, where this process may make them: they hold all processes of a jail to one limit."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
PREFIX = "rlrun-jail-"
MARGIN = 32 << 20
"""Bytes beyond a program's limit, for launcher, init, and what the kernel keeps for the processes."""


@dataclass(frozen=True, slots=True)
class MemoryCgroups:
    """Makes cgroups under `parent`."""

    parent: Path
    size: int
    """Bytes that each of them allows."""
    version: int

    def make(self) -> Path:
        """A new cgroup with the limit."""
        # Not by process id alone, which workers in other containers may share.
        folder = self.parent / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            for name, value in self._settings():
                if (folder / name).exists():  # without swap accounting, some are not there
                    (folder / name).write_text(value)
        except OSError:
            remove(folder)
            raise
        return folder

    @contextmanager
    def one(self) -> Iterator[Path]:
        """A cgroup that is gone afterwards."""
        folder = self.make()
        try:
            yield folder
        finally:
            remove(folder)

    def _settings(self) -> Iterator[tuple[str, str]]:
        if self.version == 1:
            yield "memory.limit_in_bytes", str(self.size)
            yield "memory.memsw.limit_in_bytes", str(self.size)
        else:
            yield "memory.max", str(self.size)
            yield "memory.swap.max", "0"
            yield "memory.oom.group", "1"

    def sweep(self) -> None:
        """Removes what killed processes left behind; the kernel keeps those that are in use."""
        for folder in self.parent.glob(f"{PREFIX}*"):
            process = folder.name.removeprefix(PREFIX).partition("-")[0]
            if not Path(f"/proc/{process}").exists():
                remove(folder)


def add(folder: Path, process: int) -> None:
    """Moves a process, and what it will start, into a cgroup."""
    (folder / "cgroup.procs").write_text(str(process))


def remove(folder: Path) -> None:
    """Removes a cgroup if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def memory_cgroups(limit: int) -> MemoryCgroups | None:
    """Cgroups that allow `limit` bytes and `MARGIN` more; None where this process may not make them."""
    for version, parent in _parents():
        groups = MemoryCgroups(parent, limit + MARGIN, version)
        with suppress(OSError):
            groups.sweep()
            with groups.one():
                return groups
    return None


def _parents() -> Iterator[tuple[int, Path]]:
    """Cgroups that this process is in, directly or not, and that may have children with a memory limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            mounted = MOUNTED / "memory"
            yield from ((1, folder) for folder in (mounted / path.lstrip("/"), mounted) if _writable(folder))
        elif not controllers:
            own = MOUNTED / path.lstrip("/")
            yield from ((2, folder) for folder in (own, *own.parents) if _hands_memory_down(folder))


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _hands_memory_down(folder: Path) -> bool:
    """Whether children of a cgroup of version 2 have a limit: one with processes of its own cannot say so."""
    control = folder / "cgroup.subtree_control"
    return _writable(folder) and control.is_file() and "memory" in control.read_text().split()
