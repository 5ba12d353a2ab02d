"""Files that are either as they were or as they should be, whatever happens while they are written."""

import json
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Any

_UNFINISHED = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in one piece: a reader sees the old content or the new."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in one piece."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one piece."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """The content of such a file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def is_unfinished(path: Path) -> bool:
    """Whether this is a temporary file of `write_bytes`, which a killed process leaves behind."""
    return _UNFINISHED.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def read_bytes(path: Path, most: int, *, folder: int | None = None) -> bytes:
    """Returns what a file from outside holds; OSError or ValueError if it cannot be read.

    ValueError for more than `most` bytes, and for what is not a regular file: opening a pipe would wait
    for a writer, and a device has no end. `folder`: descriptor of the folder that a relative path begins in.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    return content


def sync_tree(folder: Path) -> None:
    """Force every file under a folder, and the folders themselves, to disk."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
