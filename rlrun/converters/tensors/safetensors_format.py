"""Reads the tensors of safetensors files, and writes their headers (`safetensors_header` has the format)."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rlrun.converters.tensors.safetensors_header import HeaderEntry, read_entries
from rlrun.converters.tensors.stored import Chunk, StoredTensor

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
    return stored_tensors(read_entries(path))


def stored_tensors(entries: Mapping[str, HeaderEntry]) -> dict[str, StoredTensor]:
    """Returns the tensors that headers describe, by name."""
    return {name: _stored(entry) for name, entry in entries.items()}


def _stored(entry: HeaderEntry) -> StoredTensor:
    chunk = Chunk(entry.path, entry.position, (0,) * len(entry.shape), entry.shape)
    return StoredTensor(DTYPES[entry.dtype], entry.shape, (chunk,))


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
