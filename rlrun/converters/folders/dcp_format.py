"""The bytes of a distributed checkpoint's files, as torch.distributed.checkpoint reads them.

Each tensor is one item of a `.distcp` file: what torch.save would write, with room for the tensor's bytes.
"""

import io
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from rlrun.converters.tensors.safetensors_format import TensorInfo


@dataclass(frozen=True, slots=True)
class Envelope:
    """The bytes that torch.save writes before and after a tensor's data."""

    head: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class ItemPosition:
    """The position of an item in a file, in bytes."""

    file: str
    position: int
    length: int


def make_envelope(tensor: TensorInfo) -> Envelope:
    """Returns the bytes that torch.save writes before and after the data of such a tensor."""
    recorder = _Recorder()
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)  # address space only: nothing touches its pages
    with torch.serialization.skip_data():
        torch.save(empty, recorder)
    return Envelope(recorder.head.getvalue(), recorder.tail.getvalue())


def make_metadata(
    tensors: Mapping[str, TensorInfo], positions: Mapping[str, ItemPosition], aliases: Mapping[str, str]
) -> bytes:
    """Returns the content of `.metadata`. An alias is a second name of a tensor that is stored once."""
    names = {name: name for name in tensors} | dict(aliases)
    table = Metadata(
        state_dict_metadata={name: _entry(tensors[stored]) for name, stored in names.items()},
        planner_data={name: (name,) for name in names},
        storage_data={
            MetadataIndex(name, (0,) * len(tensors[stored].shape), 0): _info(positions[stored])
            for name, stored in names.items()
        },
        storage_meta=StorageMeta(),
        version=CURRENT_DCP_VERSION,
    )
    return pickle.dumps(table)


def _entry(tensor: TensorInfo) -> TensorStorageMetadata:
    shape = torch.Size(tensor.shape)
    chunk = ChunkStorageMetadata(offsets=torch.Size((0,) * len(shape)), sizes=shape)
    return TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), shape, [chunk])


def _info(item: ItemPosition) -> _StorageInfo:
    return _StorageInfo(item.file, item.position, item.length)


class _Recorder(io.RawIOBase):
    """Records the bytes that torch.save writes before and after it skips the tensor's data with a seek."""

    def __init__(self) -> None:
        self.head, self.tail = io.BytesIO(), io.BytesIO()
        self._current = self.head
        self._position = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._current.write(data)
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        assert whence == os.SEEK_CUR and self._current is self.head, "torch.save skips the bytes once"
        self._current = self.tail
        self._position += offset
        return self._position

    def tell(self) -> int:
        return self._position
