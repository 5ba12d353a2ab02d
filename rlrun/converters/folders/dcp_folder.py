"""Reads the folder of a distributed checkpoint (torch.distributed.checkpoint) without loading it.

`.metadata` gives the position of each chunk of each tensor. A chunk is an item in the format of torch.save:
a zip inside a larger file, whose record `data.pkl` gives offset, shape and strides of the tensor in the
record `data/0`. Because pickles can run code, only the classes that these files need are loaded, and these
classes only hold values.
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
from torch.distributed.checkpoint import metadata

from rlrun.converters.folders.dcp_metadata import METADATA, first_line, read_metadata
from rlrun.converters.tensors.safetensors_format import CODES, TensorInfo
from rlrun.converters.tensors.stored import Chunk, StoredTensor
from rlrun.models.checked_values import check_tensor_name, file_inside
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


class DcpFolder:
    """The tensors of a distributed checkpoint, and the positions of their bytes."""

    def __init__(self, folder: Path) -> None:
        """Reads the metadata. Raises ValueError if the folder is not a complete checkpoint."""
        self.folder = folder
        self.tensors: dict[str, TensorInfo] = {}
        self._files: dict[str, tuple[Path, int]] = {}
        path = file_inside(folder, METADATA)
        table = read_metadata(path)
        try:
            self._items = _items(table)
            for name in self._items:
                entry = table.state_dict_metadata[name]
                self.tensors[name] = TensorInfo(entry.properties.dtype, _shape(entry.size))
                _check_filled(name, self.tensors[name], self._items[name])
        except Exception as error:  # a damaged pickle may hold anything, and raise anything
            raise ValueError(f"{path} is not the metadata of a checkpoint: {first_line(error)}") from None
        for name in self.tensors:
            check_tensor_name(name, path)

    @property
    def num_files(self) -> int:
        """Number of files with tensors."""
        return len({item.file for items in self._items.values() for item in items})

    def num_chunks(self, name: str) -> int:
        """Returns the number of parts in which a tensor was written."""
        return len(self._items[name])

    def read(self, name: str) -> StoredTensor:
        """Returns the positions of a tensor's bytes. Raises ValueError if a file is damaged."""
        tensor = self.tensors[name]
        chunks = (self._chunk(name, tensor.dtype, item) for item in self._items[name])
        return StoredTensor(tensor.dtype, tensor.shape, tuple(chunks))

    def scalar(self, name: str) -> int | None:
        """Returns the value of an integer such as `step`; None if the checkpoint does not have it."""
        if name not in self.tensors or self.tensors[name].shape:
            return None
        stored = self.read(name)
        with open_regular(stored.chunks[0].path) as file:
            file.seek(stored.chunks[0].position)
            data = bytearray(file.read(stored.nbytes))
        return int(torch.frombuffer(data, dtype=stored.dtype))

    def _file(self, name: str) -> tuple[Path, int]:
        """Returns a file's path and size, from a cache, because a file has many tensors."""
        if name not in self._files:
            path = file_inside(self.folder, name)
            self._files[name] = path, path.stat().st_size
        return self._files[name]

    def _chunk(self, name: str, dtype: torch.dtype, item: Item) -> Chunk:
        path, size = self._file(item.file)
        if item.position + item.length > size:
            raise ValueError(f"{path} is truncated: {name} would end at byte {item.position + item.length}")
        try:
            position = item.position + data_position(path, dtype, item)
        except Exception as error:  # as above
            raise ValueError(f"{path} does not hold {name} at {item.position}: {first_line(error)}") from None
        return Chunk(path, position, item.offsets, item.shape)


def is_dcp_folder(folder: Path) -> bool:
    """Returns whether this is the folder of a distributed checkpoint."""
    return (folder / METADATA).is_file()


def _items(table: Any) -> dict[str, list[Item]]:
    """Returns the chunks of every tensor; objects that are not tensors are left out."""
    infos = {(index.fqn, _shape(index.offset or ())): info for index, info in table.storage_data.items()}
    items: dict[str, list[Item]] = {}
    for name, entry in table.state_dict_metadata.items():
        if not isinstance(entry, metadata.TensorStorageMetadata):
            continue
        items[name] = []
        for chunk in entry.chunks:
            offsets, info = _shape(chunk.offsets), infos[name, _shape(chunk.offsets)]
            if getattr(info, "transform_descriptors", None):
                raise ValueError(f"{name} is stored compressed, which is not supported")
            (position,), (length,) = _shape((info.offset,)), _shape((info.length,))
            items[name].append(Item(offsets, _shape(chunk.sizes), info.relative_path, position, length))
    if not items:
        raise ValueError("it has no tensors")
    return items


def _shape(values: Any) -> tuple[int, ...]:
    shape = tuple(values)
    if not all(type(value) is int and 0 <= value < 2**62 for value in shape):
        raise ValueError(f"{shape} are not valid sizes")
    return shape


def _check_filled(name: str, tensor: TensorInfo, items: list[Item]) -> None:
    """Raises ValueError if the chunks do not cover the tensor, or reach beyond it."""
    if tensor.dtype not in CODES:
        raise ValueError(f"{name} has type {tensor.dtype}, which is not supported")
    for item in items:
        ends = [offset + size for offset, size in zip(item.offsets, item.shape, strict=True)]
        if any(end > size for end, size in zip(ends, tensor.shape, strict=True)):
            raise ValueError(f"{name} has a chunk that reaches beyond it")
    if sum(math.prod(item.shape) for item in items) != math.prod(tensor.shape):
        raise ValueError(f"the chunks of {name} do not cover the whole tensor")


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
