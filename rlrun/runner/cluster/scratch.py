"""The temporary folder of a launch, and the removal of folders that killed launches left behind.

    <temporary folder>/rlrun-XXXXXXXX/     mode 0700
        owner.json        names the process that owns the folder; the process locks it until it ends
        processes.json    ids of the job's processes
        r/                Ray's files: Ray makes them writable by every user

A folder is removed only if all of these conditions hold: it is directly in the temporary folder, is not a
link, belongs to this user, is closed to other users, is named in its own owner.json, and its owner has ended.
A run's files never decide which folder is removed. All files are opened relative to descriptors, so that
nobody can replace a folder between the check and the removal.
"""

import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rlrun.models.foreign_files import read_bytes
from rlrun.models.json_files import parse_json
from rlrun.runner.host.atomic_files import write_json
from rlrun.runner.host.child_processes import Guardian, guarded
from rlrun.runner.host.file_lock import try_lock
from rlrun.runner.host.process_identity import Owner, boot_id
from rlrun.runner.host.segment_files import remove_segments_of, remove_stale_segments

_OWNER = "owner.json"
_PROCESSES = "processes.json"
_RAY = "r"
_NAME = re.compile(r"rlrun-[a-z0-9_]{8}")
_MAX_BYTES = 1 << 20
_SOCKET_BYTES = 107
"""The longest path of a socket on Linux."""
_RAYS_OWN = len("/rlrun-12345678/r/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")

logger = logging.getLogger(__name__)


class _Marker(Owner):
    """The content of owner.json."""

    folder: str
    """Name of the folder. A copy of the folder under another name is therefore never removed."""


class Scratch:
    """The temporary folder of this launch, and the guardian of its processes."""

    def __init__(self, path: Path, guardian: Guardian) -> None:
        self.path = path
        self._guardian = guardian

    @property
    def ray(self) -> Path:
        """Returns the folder for Ray's files."""
        return self.path / _RAY

    def note(self, pids: Mapping[str, int | None]) -> None:
        """Records the ids of the job's processes, so that a later launch can remove their shared memory."""
        write_json(self.path / _PROCESSES, {name: pid for name, pid in pids.items() if pid is not None})

    def note_session(self, session: int) -> None:
        """Makes the processes of a session end with this launch, also if it is killed."""
        self._guardian.note_session(session)


@contextmanager
def scratch_folder() -> Iterator[Scratch]:
    """Creates a folder and removes it when the block ends; a later launch does so if this one is killed.

    Processes that are started in the block end with it, also if this process is killed.
    """
    parent = _parents()[0]
    path = Path(tempfile.mkdtemp(prefix="rlrun-", dir=parent))
    lock = _mark(path)
    try:
        with guarded(path.name) as guardian:
            scratch = Scratch(path, guardian)
            scratch.ray.mkdir(mode=0o700)
            yield scratch
    finally:
        with suppress(OSError), _opened(parent) as above, _opened(path.name, above) as folder:
            _remove(folder, path.name, above)
        os.close(lock)


def remove_leftovers() -> None:
    """Removes what killed launches of this user left on this host: temporary folders and shared memory."""
    for parent in _parents():
        with suppress(OSError), _opened(parent) as above:
            for name in filter(_NAME.fullmatch, [entry.name for entry in os.scandir(above)]):
                with suppress(OSError, ValueError), _opened(name, above) as folder:
                    _remove_if_left(folder, name, above)
    remove_stale_segments()


def _parents() -> list[Path]:
    """Returns the folders for temporary files, the preferred one first.

    That is /tmp if the paths of Ray's sockets would be too long in TMPDIR.
    """
    usual, fallback = Path(tempfile.gettempdir()), Path("/tmp")
    fits = len(os.fsencode(usual)) + _RAYS_OWN <= _SOCKET_BYTES
    return list(dict.fromkeys((usual, fallback) if fits else (fallback, usual)))


def _mark(path: Path) -> int:
    """Writes owner.json and returns the descriptor that locks it.

    The file is locked before it gets its name, so that no other launch finds it unlocked.
    """
    unfinished = path / f".{_OWNER}"
    lock = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try_lock(lock)
    marker = _Marker(folder=path.name, **Owner.current().model_dump())
    os.write(lock, marker.model_dump_json().encode())
    unfinished.rename(path / _OWNER)
    return lock


def _remove_if_left(folder: int, name: str, above: int) -> None:
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        return
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(_OWNER, flags, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return
        marker = _Marker.model_validate_json(file.read(_MAX_BYTES))
        if marker.folder != name or not _has_ended(marker, try_lock(file.fileno())):
            return
        if marker.is_here:
            remove_segments_of(_pids_that_ended(folder))
        _remove(folder, name, above)
        logger.info("removed %s, which a killed launch left behind", name)


def _has_ended(owner: Owner, locked: bool | None) -> bool:
    """Returns whether an owner has certainly ended.

    `locked`: whether we could take its lock; None if the file system has no locks. A folder of another boot
    is kept: it may belong to another host, whose locks are not visible here.
    """
    if owner.boot_id != boot_id() or locked is False:
        return False
    return not owner.is_running if owner.is_here else locked is True


def _pids_that_ended(folder: int) -> list[int]:
    try:
        recorded = parse_json(read_bytes(Path(_PROCESSES), _MAX_BYTES, folder=folder))
    except (OSError, ValueError):
        return []
    pids = recorded.values() if isinstance(recorded, dict) else []
    return [pid for pid in pids if type(pid) is int and pid > 0 and not Path(f"/proc/{pid}").exists()]


def _remove(folder: int, name: str, above: int) -> None:
    """Removes an open folder. owner.json goes last, so that a later launch can finish a removal."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.name, dir_fd=folder)
        elif entry.name != _OWNER:
            os.unlink(entry.name, dir_fd=folder)
    os.unlink(_OWNER, dir_fd=folder)
    os.rmdir(name, dir_fd=above)


@contextmanager
def _opened(path: Path | str, above: int | None = None) -> Iterator[int]:
    """Opens a folder and yields its descriptor.

    `path` is relative to the open folder `above`, if given; it must then not be a link. Raises OSError.
    """
    follows = 0 if above is None else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | follows, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
