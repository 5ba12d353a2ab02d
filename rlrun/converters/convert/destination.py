"""A folder that is written whole, or not there at all.

    files ─▶ .DST.partial/ ─▶ read back ─▶ rename to DST

What a killed run has completed is in `.DST.partial/`, and the same command goes on from there. Beside it,
`.DST.partial.json` says what it will be, and is locked as long as somebody works on it.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rlrun.converters.convert.copying import PART, Advance, ResourceLimits, check_limits, write_files
from rlrun.converters.folders.output_files import OutputFile
from rlrun.converters.tensors.stored import Files

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_free(destination: Path, files: Sequence[OutputFile]) -> None:
    """ValueError where something is there already, or the disk has too little room."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ValueError(f"{destination} exists already; nothing is overwritten: name another, or remove it")
    partial = _partial(destination)
    here = {path.name.removesuffix(PART): path.stat() for path in partial.rglob("*") if path.is_file()}
    # blocks, not the length: a file that was begun has its full length at once
    need = sum(file.size for file in files) - sum(stat.st_blocks * 512 for stat in here.values())
    parent = next(path for path in destination.absolute().parents if path.is_dir())
    free = shutil.disk_usage(parent).free
    if need > free:
        raise ValueError(
            f"{parent} has {free / 1e9:.2f} GB free, {destination.name} needs {need / 1e9:.2f} GB more; "
            "make room, or write elsewhere"
        )


def write_atomically(
    destination: Path,
    files: Sequence[OutputFile],
    sources: Files,
    *,
    identity: object,
    effort: ResourceLimits,
    advance: Advance,
    held: int,
    check: Callable[[Path], None],
) -> int:
    """Write the folder `destination`, or complete what an earlier call with the same `identity` (anything
    that goes into JSON) began.

    `held`: bytes that a thread holds besides the rows that it makes. `check` sees the folder before it gets
    its name, and may raise. Returns the bytes that were there already.
    """
    check_free(destination, files)
    check_limits(effort, files, held)
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(destination)
    with _claimed(partial, identity):
        resumed = sum(file.size for file in files if (partial / file.name).exists())
        advance(resumed)
        try:
            write_files(partial, files, sources, effort, advance)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise ValueError(
                f"{error.filename}: {error.strerror}; {destination} was not made. Make room and give the "
                "same command again: it goes on where it stopped"
            ) from error
        try:
            check(partial)
        except ValueError:
            shutil.rmtree(partial)  # or the next call would go on from it
            raise
        _sync(partial)
        partial.rename(destination)
        _sync(destination.parent)
    return resumed


@contextmanager
def _claimed(partial: Path, identity: object) -> Iterator[None]:
    """The partial folder, ours alone and begun with the same identity (or empty).

    ValueError for what no conversion of ours has made: it is neither removed nor written to.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    claim = partial.with_name(partial.name + ".json")
    with os.fdopen(_open_claim(claim), "r+") as file:
        begun_with = file.read(len(digest) + 1)
        if partial.is_symlink() or (partial.exists() and not _DIGEST.fullmatch(begun_with)):
            raise ValueError(f"{partial} was not made by rlrun convert; remove it, or write elsewhere")
        if begun_with and not _DIGEST.fullmatch(begun_with):
            raise ValueError(f"{claim} was not made by rlrun convert; remove it, or write elsewhere")
        if begun_with != digest:
            shutil.rmtree(partial, ignore_errors=True)
            file.seek(0)
            file.truncate(0)
            file.write(digest)
            file.flush()
        partial.mkdir(exist_ok=True)
        yield
        claim.unlink()


def _open_claim(claim: Path) -> int:
    """Returns a descriptor of the claim that is locked; ValueError if another conversion has locked it."""
    while True:
        descriptor = os.open(claim, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one that held the lock before may have removed the file when it was done.
            if claim.exists() and os.path.samestat(os.fstat(descriptor), claim.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ValueError(f"another conversion is writing beside {claim} just now") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _partial(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.partial")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
