"""Writes a folder completely or not at all.

    files ─▶ .DST.partial/ ─▶ read back ─▶ rename to DST

A killed conversion leaves its complete files in `.DST.partial/`, and the same command continues from there.
`.DST.partial.json` beside it identifies the conversion, and is locked while a process works on it.
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
    """Raises ValueError if the destination exists, or the disk has too little space."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ValueError(
            f"{destination} already exists and is not overwritten; name another folder, or remove it"
        )
    partial = _partial(destination)
    present = {path.name.removesuffix(PART): path.stat() for path in partial.rglob("*") if path.is_file()}
    # counts blocks, because an unfinished file has its full length from the start
    need = sum(file.size for file in files) - sum(stat.st_blocks * 512 for stat in present.values())
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
    limits: ResourceLimits,
    advance: Advance,
    extra_bytes: int,
    check: Callable[[Path], None],
) -> int:
    """Writes the folder `destination`, or completes one that a call with the same `identity` has started.

    `identity`: a value that can be written as JSON. `extra_bytes`: bytes that each thread needs in addition
    to its rows. `check` is called with the folder before it is renamed, and may raise. Returns the number of
    bytes that an earlier call has written.
    """
    check_free(destination, files)
    check_limits(limits, files, extra_bytes)
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(destination)
    with _claimed(partial, identity):
        resumed = sum(file.size for file in files if (partial / file.name).exists())
        advance(resumed)
        try:
            write_files(partial, files, sources, limits, advance)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise ValueError(
                f"{error.filename}: {error.strerror}; {destination} is not complete. Free some space and run "
                "the same command again: it continues where it stopped"
            ) from error
        try:
            check(partial)
        except ValueError:
            shutil.rmtree(partial)  # otherwise the next call would continue from the damaged files
            raise
        _sync(partial)
        partial.rename(destination)
        _sync(destination.parent)
    return resumed


@contextmanager
def _claimed(partial: Path, identity: object) -> Iterator[None]:
    """Locks the partial folder, and empties it where it belongs to a conversion with another identity.

    Raises ValueError if rlrun did not create the folder; it is then neither removed nor written to.
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
            # The process that held the lock before may have removed the file at its end.
            if claim.exists() and os.path.samestat(os.fstat(descriptor), claim.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ValueError(f"another conversion is writing this folder (it has locked {claim})") from None
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
