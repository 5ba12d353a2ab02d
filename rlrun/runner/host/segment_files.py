"""Segments as files: their names, whose they are, their locks, and what killed writers leave behind."""

import fcntl
import itertools
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rlrun.runner.host.process_identity import pid_namespace

FOLDER = Path("/dev/shm")
_PREFIX = "rlrun-"
_NAME = re.compile(rf"{_PREFIX}[A-Za-z0-9._-]+")
_OWNED = re.compile(rf"{_PREFIX}.+-(\d+)\.(\d+)-\d+")
"""The writer's space of process ids, and its process."""
_TORCHS = re.compile(r"torch_(\d+)_\d+_\d+")
"""A buffer that torch shares, for SGLang servers, and its process."""
_NUMBERS = itertools.count()


def new_segment_name(job: str) -> str:
    """A name for a segment that this process writes for `job`."""
    return f"{_PREFIX}{_readable(job)}-{pid_namespace()}.{os.getpid()}-{next(_NUMBERS)}"


def is_segment_name(name: str) -> bool:
    """Whether a segment may be called so: no path, nothing of another program's."""
    return _NAME.fullmatch(name) is not None


def belongs_to_job(name: str, job: str) -> bool:
    """Whether a segment of this job, or of a part of it called `<job>-…`, may be called so."""
    return is_segment_name(name) and f"{name}-".startswith(f"{_PREFIX}{_readable(job)}-"[: len(_PREFIX) + 90])


def remove_stale_segments(folder: Path = FOLDER) -> list[str]:
    """Remove this user's segments whose writer was killed, of whatever job; returns their names.

    Writers of other containers that share /dev/shm are left alone: their process ids mean nothing here.
    """
    removed = []
    for path in _own_files(folder):
        match = _OWNED.fullmatch(path.name)
        if match and match[1] == str(pid_namespace()) and not Path(f"/proc/{match[2]}").exists():
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def remove_segments_of(pids: Iterable[int], folder: Path = FOLDER) -> None:
    """Remove the shared weights, ours and torch's, that these processes of this host left behind."""
    owners = set(pids)
    for path in _own_files(folder):
        ours, torchs = _OWNED.fullmatch(path.name), _TORCHS.fullmatch(path.name)
        is_ours = ours and ours[1] == str(pid_namespace()) and int(ours[2]) in owners
        if is_ours or (torchs and int(torchs[1]) in owners):
            path.unlink(missing_ok=True)


class ExclusiveLock:
    """A writer's lock of an open segment. TimeoutError when readers keep it longer than `wait` seconds."""

    def __init__(self, descriptor: int, name: str, wait: float) -> None:
        self._descriptor, self._name, self._wait = descriptor, name, wait

    def __enter__(self) -> None:
        deadline = time.monotonic() + self._wait
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"an engine still computes with segment {self._name} after {self._wait:g} s: "
                        "it has not taken over the weights pushed last"
                    ) from None
                time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def _readable(job: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", job)[:100]


def _own_files(folder: Path) -> Iterator[Path]:
    """Regular files that belong to this user."""
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                yield Path(entry.path)
