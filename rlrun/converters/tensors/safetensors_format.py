"""Reads and writes headers of safetensors files (https://huggingface.co/docs/safetensors).

A file has 8 bytes of header length (little endian), a JSON header with names, types, shapes and offsets, and
the bytes of the tensors.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlrun.converters.tensors.stored import Chunk, StoredTensor
from rlrun.models.checked_names import check_tensor_name
from rlrun.models.foreign_files import open_regular

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
_MAX_HEADER = 100_000_000
"""The limit of the safetensors library."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's type and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Returns the number of bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a file, by name. Raises ValueError if the file is damaged."""
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
    tensors, begins = {}, {}
    for name, entry in header.items():
        check_tensor_name(name, path)
        tensors[name], begins[name] = _tensor(path, 8 + length, name, entry)
    _check_layout(path, size - 8 - length, tensors, begins)
    return tensors


def make_header(tensors: Mapping[str, TensorInfo]) -> tuple[bytes, dict[str, int]]:
    """Returns the bytes of a header, and the position in the file at which each tensor's bytes begin."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ends = 0
    begins = {}
    for name, tensor in tensors.items():
        begins[name], ends = ends, ends + tensor.nbytes
        header[name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begins[name], ends],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {name: start + begin for name, begin in begins.items()}


def split_shards(tensors: Mapping[str, TensorInfo], shard_bytes: int) -> dict[str, list[str]]:
    """Assigns tensors to files. A file is larger than `shard_bytes` only if it holds one larger tensor."""
    shards = list(_fill(tensors, shard_bytes))
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": shard for i, shard in enumerate(shards, 1)}


def make_index(tensors: Mapping[str, TensorInfo], shards: Mapping[str, Iterable[str]]) -> bytes:
    """Returns the content of `model.safetensors.index.json`."""
    weight_map = {name: file for file, names in shards.items() for name in names}
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return json.dumps(index, indent=2).encode() + b"\n"


def _fill(tensors: Mapping[str, TensorInfo], shard_bytes: int) -> Iterator[list[str]]:
    shard: list[str] = []
    filled = 0
    for name, tensor in tensors.items():
        if shard and filled + tensor.nbytes > shard_bytes:
            yield shard
            shard, filled = [], 0
        shard.append(name)
        filled += tensor.nbytes
    yield shard


def _tensor(path: Path, data: int, name: str, entry: object) -> tuple[StoredTensor, int]:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in DTYPES:
        raise _broken(path, f"{name} has an unknown type")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _broken(path, f"{name} has an invalid shape or invalid offsets")
    dtype = DTYPES[entry["dtype"]]
    chunk = Chunk(path, data + offsets[0], (0,) * len(shape), tuple(shape))
    stored = StoredTensor(dtype, tuple(shape), (chunk,))
    if offsets[1] - offsets[0] != stored.nbytes:
        raise _broken(path, f"{name} has {offsets[1] - offsets[0]} bytes, its shape needs {stored.nbytes}")
    return stored, offsets[0]


def _check_layout(
    path: Path, size: int, tensors: Mapping[str, StoredTensor], begins: Mapping[str, int]
) -> None:
    """Checks that the tensors fill the file without gaps or overlaps. Raises ValueError."""
    end = 0
    for name in sorted(tensors, key=lambda name: (begins[name], tensors[name].nbytes)):
        if begins[name] != end:
            raise _broken(path, f"{name} does not begin where the tensor before it ends")
        end += tensors[name].nbytes
    if end != size:
        raise _broken(
            path, f"it has {size} bytes of tensors, but its header lists {end}; the file may be truncated"
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
