"""Files that are either as they were or as they should be, whatever happens while they are written."""

import json
import os
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in one piece: a reader sees the old content or the new."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one piece."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one piece."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync_tree(folder: Path) -> None:
    """Force every file under a folder, and the folders themselves, to disk."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
