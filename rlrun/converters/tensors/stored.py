"""Tensors as they lie in files: which bytes of which file hold which box of a tensor.

Both formats are read as this (`hf_folder`, `dcp_folder`): a safetensors tensor has one chunk, a tensor of a
distributed checkpoint one for each rank that held a part.
"""

import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock

import torch

_NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux, which Python names from 3.12 on. torch wants mappings that could be written to, and
no memory is to be set aside for that.
"""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor; its bytes lie together in one file, in row-major order.

    Example: the second half of a `[64, 32]` matrix,
    `Chunk(Path("__1_0.distcp"), position=704, offsets=(32, 0), shape=(32, 32))`
    """

    path: Path
    position: int
    """Of the first byte."""
    offsets: tuple[int, ...]
    """Where the box begins in the tensor."""
    shape: tuple[int, ...]

    def rows(self, first: int, last: int, itemsize: int) -> "Chunk":
        """The part of the chunk that lies in rows `first` to `last` of the tensor."""
        low, high = max(first, self.offsets[0]), min(last, self.offsets[0] + self.shape[0])
        assert low < high, "the chunk has none of these rows"
        skipped = (low - self.offsets[0]) * math.prod(self.shape[1:]) * itemsize
        return replace(
            self,
            position=self.position + skipped,
            offsets=(low, *self.offsets[1:]),
            shape=(high - low, *self.shape[1:]),
        )


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in files."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    """Boxes that fill the tensor."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def index(self, place: int) -> "StoredTensor":
        """`tensor[place]`."""
        found = []
        for chunk in self.chunks:
            if chunk.offsets[0] <= place < chunk.offsets[0] + chunk.shape[0]:
                row = chunk.rows(place, place + 1, self.dtype.itemsize)
                found.append(replace(row, offsets=row.offsets[1:], shape=row.shape[1:]))
        return StoredTensor(self.dtype, self.shape[1:], tuple(found))


def stack(tensors: Iterable[StoredTensor]) -> StoredTensor:
    """`torch.stack(tensors)`; all have one shape and dtype."""
    members = list(tensors)
    chunks = (
        replace(chunk, offsets=(place, *chunk.offsets), shape=(1, *chunk.shape))
        for place, member in enumerate(members)
        for chunk in member.chunks
    )
    return StoredTensor(members[0].dtype, (len(members), *members[0].shape), tuple(chunks))


class Files:
    """Files that are read: each is opened once and stays open, so that it may be removed meanwhile (a running
    job removes its oldest checkpoint). Threads may share it.
    """

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        self._lock = RLock()

    def close(self) -> None:
        """Close the files; tensors that were made of them stay valid."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._maps.clear()

    def open(self, path: Path) -> int:
        """The file's descriptor."""
        with self._lock:
            if path not in self._descriptors:
                self._descriptors[path] = os.open(path, os.O_RDONLY)
            return self._descriptors[path]

    def array(self, chunk: Chunk, dtype: torch.dtype) -> torch.Tensor:
        """The chunk as a tensor; its bytes stay in the file until they are used. Not to be written to."""
        count = math.prod(chunk.shape)
        if not count:
            return torch.empty(chunk.shape, dtype=dtype)
        data = torch.frombuffer(
            self._map(chunk.path), dtype=torch.uint8, count=count * dtype.itemsize, offset=chunk.position
        )
        if data.data_ptr() % dtype.itemsize:
            data = data.clone()
        return data.view(dtype).view(chunk.shape)

    def release(self, chunk: Chunk, dtype: torch.dtype) -> None:
        """Let go of the memory that reading the chunk has taken (not of the page cache)."""
        start = chunk.position // mmap.PAGESIZE * mmap.PAGESIZE
        length = chunk.position + math.prod(chunk.shape) * dtype.itemsize - start
        if math.prod(chunk.shape):
            self._map(chunk.path).madvise(mmap.MADV_DONTNEED, start, length)

    def _map(self, path: Path) -> mmap.mmap:
        with self._lock:
            if path not in self._maps:
                self._maps[path] = mmap.mmap(self.open(path), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE)
            return self._maps[path]
