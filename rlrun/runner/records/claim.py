"""Gives a launch exclusive use of its run folder until it ends.

    mkdir, or an existing folder ─▶ lock driver.lock ─▶ does state.json say that it runs elsewhere?
                                        │ locked: refused                     │ yes: refused

The kernel releases the lock when the driver ends, however it ends. Some file systems have no locks, or do not
show the locks of other hosts; there state.json alone decides.
"""

import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.host.atomic_files import is_unfinished
from rlrun.runner.host.file_lock import try_lock
from rlrun.runner.records.run_folder import PRIVATE, RunFolder
from rlrun.runner.records.state import is_alive
from rlrun.specs.paths import display_path

logger = logging.getLogger(__name__)


def check_name(runs_dir: Path, name: str, *, resume: bool, new: bool) -> None:
    """Raises RunFolderError if `claim_folder` would for the name alone: asked before files are read."""
    folder = RunFolder(runs_dir.absolute() / name)
    if resume:
        _check_is_a_run(folder)
    elif not new and folder.path.exists():
        raise RunFolderError(_in_use(folder))


@contextmanager
def claim_folder(
    runs_dir: Path,
    name: str,
    *,
    resume: bool,
    new: bool,
    is_free: Callable[[str], bool] = lambda name: True,
) -> Iterator[RunFolder]:
    """Yields the folder of a launch, which no other launch can claim before the block ends.

    The folder is fresh, or an existing one with `resume`; `new` takes the next name that is free here, and
    of which `is_free` says that it is free elsewhere. Raises
    RunFolderError, with nothing changed, if the name is in use, if there is no run to resume, or if the run
    is still running.
    """
    folder = RunFolder(runs_dir.absolute() / name)  # other processes have other working directories
    folder, lock = _resume(folder) if resume else _make_fresh(folder, is_free if new else None)
    try:
        _remove_unfinished(folder)
        folder.make()
        yield folder
    finally:
        os.close(lock)


def is_claimed_by(folder: RunFolder, pid: int) -> bool:
    """Returns whether a process of this host holds the folder's lock, which only its driver does.

    A copied folder may name any process, and have a link in place of the lock to a file that this process has
    open: only a file of the folder itself counts.
    """
    with suppress(OSError):
        lock = folder.driver_lock.lstat()
        if not stat.S_ISREG(lock.st_mode) or lock.st_nlink != 1:
            return False
        for opened in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(lock, opened.stat()) and _holds_lock(folder, pid, opened.name):
                    return True
    return False


def _holds_lock(folder: RunFolder, pid: int, descriptor: str) -> bool:
    """Returns whether a process has locked the file that it has open, or could not, for want of locks on the
    file system.
    """
    lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
    if any(line.startswith("lock:") and {"FLOCK", "WRITE"} <= set(line.split()) for line in lines):
        return True
    lock = os.open(folder.driver_lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return try_lock(lock) is None
    finally:
        os.close(lock)


def _resume(folder: RunFolder) -> tuple[RunFolder, int]:
    _check_is_a_run(folder)
    check_has_no_links([folder.path, *folder.written()])
    lock = _lock(folder)
    if lock is None:
        raise RunFolderError(_still_running(folder))
    try:
        if is_alive(folder.read_state()):
            raise RunFolderError(_still_running(folder))
    except BaseException:
        os.close(lock)
        raise
    return folder, lock


def _make_fresh(folder: RunFolder, is_free: Callable[[str], bool] | None) -> tuple[RunFolder, int]:
    """Returns the folder and its lock; with `is_free`, that of the next free name."""
    number = 2
    candidate = folder
    while True:
        may_take = is_free is None or (not candidate.path.exists() and is_free(candidate.name))
        if may_take and (lock := _make_and_lock(candidate)) is not None:
            return candidate, lock
        if is_free is None:
            raise RunFolderError(_in_use(folder))
        candidate = RunFolder(folder.path.with_name(f"{folder.name}-{number}"))
        number += 1


def _make_and_lock(folder: RunFolder) -> int | None:
    """Returns the lock of a new folder; None if the name is in use, or if a resume claimed it first."""
    try:
        folder.path.mkdir(mode=PRIVATE, parents=True)
    except FileExistsError:
        return None
    except OSError as error:
        raise RunFolderError(
            f"the run's folder {folder.shown} cannot be created ({error.strerror}): set runs_dir to a folder "
            "that you may write"
        ) from None
    return _lock(folder)


def _lock(folder: RunFolder) -> int | None:
    """Returns a descriptor that holds the folder's lock until it is closed; None if it is taken."""
    try:
        lock = os.open(folder.driver_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise RunFolderError(
            f"{display_path(folder.driver_lock)} cannot be opened: {error.strerror}"
        ) from None
    locked = try_lock(lock)
    if locked is None:
        logger.warning(
            "the file system of %s has no locks: make sure that no other launch resumes this run",
            folder.shown,
        )
    if locked is False:
        os.close(lock)
        return None
    return lock


def _in_use(folder: RunFolder) -> str:
    return (
        f"the run {folder.shown} exists: continue it (--resume), start another run beside it (--new), or "
        "choose another name (--name)"
    )


def _check_is_a_run(folder: RunFolder) -> None:
    if folder.was_launched:
        return
    if folder.path.exists():
        raise RunFolderError(f"{folder.shown} is not a run: it has no {folder.state.name}")
    runs = sorted(path.name for path in folder.path.parent.glob("*") if (path / "state.json").exists())
    existing = f"; existing runs: {', '.join(runs)}" if runs else ""
    raise RunFolderError(f"there is no run {folder.shown} to resume{existing}")


def check_has_no_links(paths: Iterable[Path]) -> None:
    """Raises RunFolderError for a link, through which the launch would change files outside of the folder.

    Also for a pipe or a device, which would stop the launch.
    """
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RunFolderError(f"{display_path(path)} is not a regular file: move it away")
        if path.is_symlink():
            raise RunFolderError(
                f"{display_path(path)} is a link, and a run writes and removes files only in its own folder; "
                "replace it by what it points to (runs_dir may name another disk)"
            )


def _still_running(folder: RunFolder) -> str:
    where = ""
    with suppress(RunFolderError):
        state = folder.read_state()
        where = f" (process {state['pid']} on {state['host']})" if is_alive(state) else ""
    return f"the run {folder.shown} is still running{where}; stop it first: rlrun stop {folder.name}"


def _remove_unfinished(folder: RunFolder) -> None:
    """Removes the temporary files of a driver that was killed while it replaced a file."""
    for path in folder.path.iterdir():
        if is_unfinished(path):
            path.unlink(missing_ok=True)
