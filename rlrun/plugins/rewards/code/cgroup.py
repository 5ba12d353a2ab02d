"""Creates memory cgroups, if this process may: each limits the memory of all processes of a jail together."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
PREFIX = "rlrun-jail-"
NEW_SECONDS = 60.0
"""Age from which an empty cgroup is a leftover: its maker fills it within milliseconds."""
MARGIN = 32 << 20
"""Bytes beyond a program's limit, for the launcher, init, and the kernel's memory for the processes."""


@dataclass(frozen=True, slots=True)
class MemoryCgroups:
    """Creates cgroups under `parent`."""

    parent: Path
    size: int
    """Memory limit of each cgroup in bytes."""
    version: int
    """Version of the cgroup interface, 1 or 2."""

    def make(self) -> Path:
        """Creates a cgroup with the limit and returns its folder."""
        # The process id alone is not unique: workers in other containers may have the same one.
        folder = self.parent / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            for name, value in self._settings():
                if (folder / name).exists():  # a kernel without swap accounting lacks some of these files
                    (folder / name).write_text(value)
        except OSError:
            remove(folder)
            raise
        return folder

    @contextmanager
    def new_group(self) -> Iterator[Path]:
        """Yields the folder of a new cgroup, and removes it afterwards."""
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
        """Removes the cgroups of processes that were killed.

        The kernel refuses to remove those in use. A new one is empty until its first process has joined, and
        its maker may be in another container, where this process cannot see it.
        """
        for folder in self.parent.glob(f"{PREFIX}*"):
            process = folder.name.removeprefix(PREFIX).partition("-")[0]
            with suppress(OSError):  # another process has removed it
                if (
                    not Path(f"/proc/{process}").exists()
                    and time.time() - folder.stat().st_mtime > NEW_SECONDS
                ):
                    remove(folder)


def add(folder: Path, process: int) -> None:
    """Moves a process, and all processes that it will start, into a cgroup."""
    (folder / "cgroup.procs").write_text(str(process))


def remove(folder: Path) -> None:
    """Removes a cgroup if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def memory_cgroups(limit: int) -> MemoryCgroups | None:
    """Returns a maker of cgroups with `limit + MARGIN` bytes; None if this process may not create cgroups."""
    for version, parent in _parents():
        groups = MemoryCgroups(parent, limit + MARGIN, version)
        with suppress(OSError):
            groups.sweep()
            with groups.new_group():
                return groups
    return None


def _parents() -> Iterator[tuple[int, Path]]:
    """Yields version and folder of each cgroup around this process whose children may have a memory limit."""
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
            group = MOUNTED / path.lstrip("/")
            yield from ((2, folder) for folder in (group, *group.parents) if _hands_memory_down(folder))


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _hands_memory_down(folder: Path) -> bool:
    """Returns whether children of a version 2 cgroup have memory limits.

    A cgroup that contains processes itself cannot enable them, so the parents of this process's own cgroup
    are tried too.
    """
    control = folder / "cgroup.subtree_control"
    return _writable(folder) and control.is_file() and "memory" in control.read_text().split()
