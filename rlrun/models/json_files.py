"""Reads JSON that rlrun did not write: texts, files, and the headers of safetensors files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.models.checked_values import file_inside
from rlrun.models.foreign_files import open_regular, read_bytes

_MAX_DEPTH = 200
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} deep"
_MAX_HEADER_BYTES = 100_000_000
_MAX_JSON_BYTES = 256 << 20
"""The index of a model's weights, the longest file that is read here, has 10 MB for 60,000 tensors."""


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text. Raises ValueError for anything else, also for deep nesting.

    Python's parser raises RecursionError for deep nesting, and so does every later step that walks a value
    that the parser has only just accepted.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, brackets)) > _MAX_DEPTH:  # type: ignore[arg-type]  # both are str, or both bytes
        check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raises ValueError for lists and tables that are nested too deeply."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    raise ValueError(_TOO_DEEP)


def read_json(path: Path) -> Any:
    """Returns the value in a JSON file.

    Raises ValueError, with the file and the line, for anything but JSON in a regular file, and
    FileNotFoundError if the file does not exist.
    """
    try:
        return parse_json(read_bytes(path, _MAX_JSON_BYTES))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}; copy the file again") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises ValueError, with the file and the line, for anything but an object, and FileNotFoundError if it
    does not exist.
    """
    contents = read_json(path)
    if not isinstance(contents, dict):
        raise ValueError(f"{path} does not hold a JSON object; copy the file again")
    return contents


def tensor_shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and shape of every tensor of a safetensors file.

    The file is only checked as far as this needs; loading the tensors checks it thoroughly. Raises ValueError
    if it is not a safetensors file.
    """
    try:
        with open_regular(file_inside(path.parent, path.name)) as file:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), _MAX_HEADER_BYTES)))
        shapes = {name: _shape(entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None
    yield from shapes.items()


def _shape(entry: Any) -> tuple[int, ...]:
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**62 for size in shape):
        raise ValueError("a shape is not a list of sizes")
    return tuple(shape)
