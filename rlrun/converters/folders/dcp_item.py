"""Finds a tensor's bytes in an item of a distributed checkpoint, which has the format of torch.save.

An item is a zip inside a larger file. Its record `data.pkl` gives offset, shape and strides of the tensor in
the record `data/0`.
"""

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlrun.models.foreign_files import open_regular

_RECORD_HEADER = 30
"""Bytes of a zip record's own header, before its name and padding."""


@dataclass(frozen=True, slots=True)
class Item:
    """The position and shape of a chunk, from `.metadata`."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    position: int
    length: int


def data_position(path: Path, dtype: torch.dtype, item: Item) -> int:
    """Returns the position of the tensor's bytes in the item. A damaged item may raise any exception."""
    with open_regular(path) as file:
        file.seek(item.position)
        archive = io.BytesIO(file.read(item.length)) if item.length < 1 << 16 else _Window(file, item)
        with zipfile.ZipFile(archive) as records:
            _check_stored(records)
            root = next(name for name in records.namelist() if name.endswith("/data.pkl"))[: -len("data.pkl")]
            if f"{root}byteorder" in records.namelist() and records.read(f"{root}byteorder") != b"little":
                raise ValueError("its bytes are big-endian, which is not supported")
            key, offset, size, stride = _TensorPickle(records.open(f"{root}data.pkl")).load()
            record = records.getinfo(f"{root}data/{key}")
        archive.seek(record.header_offset)
        header = archive.read(_RECORD_HEADER)
    begin = (
        record.header_offset
        + _RECORD_HEADER
        + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    )
    used = (offset + math.prod(size)) * dtype.itemsize
    if tuple(size) != item.shape or used > record.file_size:
        raise ValueError(f"it is a tensor of shape {size}, not {item.shape}")
    if begin + used > item.length:
        raise ValueError("it is truncated")
    if math.prod(size) and not _is_contiguous(size, stride):
        raise ValueError(f"it is stored with strides {stride}, only row-major tensors are supported")
    return begin + offset * dtype.itemsize


def _check_stored(records: zipfile.ZipFile) -> None:
    """Raises ValueError for a compressed record, which could fill the memory; torch never compresses."""
    for record in records.infolist():
        if record.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"its record {record.filename} is compressed")


class _TensorPickle(pickle.Unpickler):
    """Reads the small pickle of a tensor: `(storage's key, offset, size, stride)`."""

    def persistent_load(self, pid: Any) -> Any:
        return pid[2]

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return lambda key, offset, size, stride, *_: (key, offset, tuple(size), tuple(stride))
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch", "Size"):
            return torch.Size
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return name
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return name
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which no tensor needs")


class _Window(io.RawIOBase):
    """Presents the bytes of one item as a file."""

    def __init__(self, file: Any, item: Item) -> None:
        self._file = file
        self._begin, self._length = item.position, item.length
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        remaining = max(0, self._length - self._at)
        size = remaining if size is None or size < 0 else min(size, remaining)
        self._file.seek(self._begin + self._at)
        data: bytes = self._file.read(size)
        self._at += len(data)
        return data


def _is_contiguous(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if length > 1 and step != expected:
            return False
        expected *= length
    return True
