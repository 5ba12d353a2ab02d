"""Describes where tensors are stored: which bytes of which file hold which box of a tensor.

`hf_folder` and `dcp_folder` both read their format into this form. A safetensors tensor has one chunk; a
tensor of a distributed checkpoint has one chunk per rank that held a part of it.
"""

import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Self

import torch

_NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python defines since 3.12. torch needs writable mappings; with this flag Linux
reserves no memory for writes that never happen.
"""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor, stored as one range of bytes in a file, in row-major order.

    Example: the second half of a `[64, 32]` matrix,
    `Chunk(Path("__1_0.distcp"), position=704, offsets=(32, 0), shape=(32, 32))`
    """

    path: Path
    position: int
    """Position of the first byte in the file."""
    offsets: tuple[int, ...]
    """Index of the box's first element in the tensor."""
    shape: tuple[int, ...]

    def rows(self, first: int, last: int, itemsize: int) -> "Chunk":
        """Returns the part of the chunk that belongs to rows `first` to `last` of the tensor."""
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
    """A tensor that is stored in one or more files."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    """Boxes that fill the tensor."""

    @property
    def nbytes(self) -> int:
        """Returns the number of bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def index(self, index: int) -> "StoredTensor":
        """Returns `tensor[index]`."""
        chunks = []
        for chunk in self.chunks:
            if chunk.offsets[0] <= index < chunk.offsets[0] + chunk.shape[0]:
                row = chunk.rows(index, index + 1, self.dtype.itemsize)
                chunks.append(replace(row, offsets=row.offsets[1:], shape=row.shape[1:]))
        return StoredTensor(self.dtype, self.shape[1:], tuple(chunks))

    def part(self, first: int, last: int) -> "StoredTensor":
        """Returns `tensor[first:last]`, of rows that the tensor has."""
        chunks = []
        for chunk in self.chunks:
            if chunk.offsets[0] < last and first < chunk.offsets[0] + chunk.shape[0]:
                rows = chunk.rows(first, last, self.dtype.itemsize)
                chunks.append(replace(rows, offsets=(rows.offsets[0] - first, *rows.offsets[1:])))
        return StoredTensor(self.dtype, (last - first, *self.shape[1:]), tuple(chunks))


def join(tensors: Iterable[StoredTensor]) -> StoredTensor:
    """Returns `torch.cat(tensors)`; all tensors must have the same type, and rows of one shape."""
    members, chunks, row = list(tensors), list[Chunk](), 0
    for member in members:
        chunks += [
            replace(chunk, offsets=(chunk.offsets[0] + row, *chunk.offsets[1:])) for chunk in member.chunks
        ]
        row += member.shape[0]
    return StoredTensor(members[0].dtype, (row, *members[0].shape[1:]), tuple(chunks))


def stack(tensors: Iterable[StoredTensor]) -> StoredTensor:
    """Returns `torch.stack(tensors)`; all tensors must have the same shape and type."""
    members = list(tensors)
    chunks = (
        replace(chunk, offsets=(index, *chunk.offsets), shape=(1, *chunk.shape))
        for index, member in enumerate(members)
        for chunk in member.chunks
    )
    return StoredTensor(members[0].dtype, (len(members), *members[0].shape), tuple(chunks))


class Files:
    """The open files that tensors are read from; threads may share one instance.

    Each file is opened once and stays open, so that it can be read even if it is removed meanwhile: a running
    job removes its oldest checkpoint.
    """

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        self._lock = RLock()

    def close(self) -> None:
        """Closes the files. Tensors that were read from them stay valid."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._maps.clear()

    def open(self, path: Path) -> int:
        """Returns the file's descriptor, opening the file on the first call."""
        with self._lock:
            if path not in self._descriptors:
                self._descriptors[path] = os.open(path, os.O_RDONLY)
            return self._descriptors[path]

    def array(self, chunk: Chunk, dtype: torch.dtype) -> torch.Tensor:
        """Returns the chunk as a read-only tensor, whose bytes are read from the file when they are used."""
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
        """Frees the memory that reading the chunk has taken; the page cache keeps its copy."""
        start = chunk.position // mmap.PAGESIZE * mmap.PAGESIZE
        length = chunk.position + math.prod(chunk.shape) * dtype.itemsize - start
        if math.prod(chunk.shape):
            self._map(chunk.path).madvise(mmap.MADV_DONTNEED, start, length)

    def _map(self, path: Path) -> mmap.mmap:
        with self._lock:
            if path not in self._maps:
                self._maps[path] = mmap.mmap(self.open(path), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE)
            return self._maps[path]


class OpenFiles:
    """Holds the files that an object reads tensors from; a context manager that closes them."""

    def __init__(self) -> None:
        self._files = Files()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()
