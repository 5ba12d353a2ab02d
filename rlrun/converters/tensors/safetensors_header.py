"""Reads headers of safetensors files (https://huggingface.co/docs/safetensors), without torch.

A file has 8 bytes of header length (little endian), a JSON header with names, types, shapes and offsets, and
the bytes of the tensors.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.models.checked_values import check_tensor_name
from rlrun.models.foreign_files import open_regular

ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}
"""The bytes of one number, by the format's names of types."""
_MAX_HEADER = 100_000_000
"""The limit of the safetensors library."""


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """What a header says of a tensor."""

    path: Path
    """The file."""
    dtype: str
    """The format's name of the type, such as `BF16`."""
    shape: tuple[int, ...]
    position: int
    """Position of the first byte in the file."""

    @property
    def nbytes(self) -> int:
        """Returns the number of bytes of the tensor."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def read_entries(path: Path) -> dict[str, HeaderEntry]:
    """Returns what the header says, by name. Raises ValueError if the file is damaged."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER):
            raise _broken(path, "it does not begin with the length of a header")
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise _broken(path, "its header is not valid JSON with one entry for each tensor") from None
    if not isinstance(header, dict):
        raise _broken(path, "its header is not a table")
    header.pop("__metadata__", None)
    entries = {}
    for name, entry in header.items():
        check_tensor_name(name, path)
        entries[name] = _entry(path, 8 + length, name, entry)
    _check_layout(path, 8 + length, size, entries)
    return entries


def _entry(path: Path, data: int, name: str, entry: object) -> HeaderEntry:
    """Returns a checked entry; `data` is where the tensors begin."""
    dtype = entry.get("dtype") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _broken(path, f"{name} has an unknown type")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _broken(path, f"{name} has an invalid shape or invalid offsets")
    checked = HeaderEntry(path, dtype, tuple(shape), data + offsets[0])
    if offsets[1] - offsets[0] != checked.nbytes:
        raise _broken(path, f"{name} has {offsets[1] - offsets[0]} bytes, its shape needs {checked.nbytes}")
    return checked


def _check_layout(path: Path, data: int, size: int, entries: Mapping[str, HeaderEntry]) -> None:
    """Checks that the tensors fill the file without gaps or overlaps. Raises ValueError."""
    end = data
    for name in sorted(entries, key=lambda name: (entries[name].position, entries[name].nbytes)):
        if entries[name].position != end:
            raise _broken(path, f"{name} does not begin where the tensor before it ends")
        end += entries[name].nbytes
    if end != size:
        held, listed = size - data, end - data
        raise _broken(
            path, f"it has {held} bytes of tensors, but its header lists {listed}; the file may be truncated"
        )


def _naturals(value: Any) -> bool:
    """Returns whether a value is a list of whole numbers that are not negative."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**62 for item in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _broken(path: Path, problem: str) -> ValueError:
    return ValueError(f"{path} cannot be read: {problem}; download or copy it again")
