"""Copies models and data from object stores to a cache on this machine, before they are used.

    s3://bucket/rows.jsonl ─▶ ~/.cache/rlrun/objects/<address>/<version>/rows.jsonl

The version follows from the size and the ETag of every object. A launch lists the objects again, and copies
those that changed; a file that is in the cache is whole.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from uuid import uuid4

from rlrun.models.cache import cache_folder, private_folder
from rlrun.models.object_store import StorageError, open_store, reason

_READ_BYTES = 8 << 20
_NEWEST = "newest"
"""File with the version that was staged last."""


def stage_folder(address: str, patterns: Sequence[str], say: Callable[[str], None]) -> Path:
    """Returns a folder with the objects directly below an address whose names match the patterns.

    `say` shows a line before anything is copied. Raises ValueError, with a message of one line, if the store
    cannot be read or has no such object.
    """
    with _one_line(address):
        store = open_store(address, create=False)
        objects = {item["path"]: item for item in _listed(store) if "/" not in item["path"]}
        if not objects:
            raise ValueError(f"{address} has no objects")
        folder = _begin(address, list(objects.values()))
        names = [name for name in objects if any(fnmatch(name, pattern) for pattern in patterns)]
        for name in names:
            _copy(store, objects[name], folder / name, f"{address}/{name}", say)
        _end(folder)
    return folder


def stage_file(address: str, say: Callable[[str], None]) -> Path:
    """Returns a copy of an object. Raises ValueError as `stage_folder` does."""
    parent, _, name = address.rpartition("/")
    with _one_line(address):
        import obstore

        store = open_store(parent, create=False)
        item = obstore.head(store, name)
        folder = _begin(address, [item])
        _copy(store, item, folder / name, address, say)
        _end(folder)
    return folder / name


def staged_folder(address: str) -> Path | None:
    """Returns the folder of an address that was staged last, without a request; None if none was."""
    try:
        folder = cache_folder() / _name(address)
        folder /= (folder / _NEWEST).read_text()
    except (OSError, ValueError):
        return None
    return folder if folder.is_dir() else None


def staged_file(address: str) -> Path | None:
    """Returns the copy of an object that was staged last, without a request; None if there is none."""
    folder = staged_folder(address)
    path = None if folder is None else folder / address.rpartition("/")[2]
    return path if path is not None and path.is_file() else None


def _name(address: str) -> str:
    return f"objects/{hashlib.sha256(address.encode()).hexdigest()[:24]}"


def _listed(store: Any) -> Iterator[Any]:
    import obstore

    for batch in obstore.list(store):
        yield from batch


def _begin(address: str, objects: Sequence[Any]) -> Path:
    """Returns the folder of this version of the objects."""
    facts = sorted((item["path"], item["size"], item["e_tag"]) for item in objects)
    return private_folder(f"{_name(address)}/{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}")


def _end(folder: Path) -> None:
    newest = folder.parent / _NEWEST
    temporary = newest.with_name(f".{uuid4().hex}")
    temporary.write_text(folder.name)
    temporary.replace(newest)


def _copy(store: Any, item: Any, target: Path, address: str, say: Callable[[str], None]) -> None:
    """Copies an object, unless the cache has it. Raises ValueError if it changes meanwhile."""
    if target.exists():
        return
    import obstore

    say(f"copying {address} ({item['size']:,} bytes) to {target.parent}")
    temporary = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        answer = obstore.get(store, item["path"])
        if (answer.meta["size"], answer.meta["e_tag"]) != (item["size"], item["e_tag"]):
            raise ValueError(f"{address} was replaced while it was copied: launch again")
        with temporary.open("wb") as file:
            for block in answer.stream(min_chunk_size=_READ_BYTES):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        if (size := temporary.stat().st_size) != item["size"]:
            raise ValueError(f"{address} has {item['size']:,} bytes, and {size:,} arrived: launch again")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _one_line(address: str) -> Iterator[None]:
    """Turns errors of obstore and of the disk into a ValueError with one line."""
    try:
        yield
    except ValueError:
        raise
    except StorageError as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # a boundary: obstore's errors have several bases
        raise ValueError(f"{address}: {reason(error)}") from error
