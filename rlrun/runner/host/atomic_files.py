"""Writes files atomically: after a crash a file has either its old or its new content."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

_UNFINISHED = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically: a reader sees the old content or the new."""
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
    """Writes a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Returns the content that `write_json` writes."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def is_unfinished(path: Path) -> bool:
    """Whether this is a temporary file of `write_bytes` that a killed process left behind."""
    return _UNFINISHED.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def sync_tree(folder: Path) -> None:
    """Flushes every file under a folder, and the folders themselves, to disk."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
