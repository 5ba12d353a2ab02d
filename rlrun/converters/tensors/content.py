"""Defines contents: tensors that are computed a few rows at a time, so that none has to fit into memory.

Contents can be built on other contents: stored -> dequantised -> merged -> quantised.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files, StoredTensor


class Content(Protocol):
    """A tensor that can be computed a few rows at a time; a scalar counts as one row."""

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""

    @property
    def step(self) -> int:
        """The number of rows that have to be computed together: ranges begin at multiples of it, and end at
        multiples of it or at the last row.
        """

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Computes rows `first` to `last`, contiguous, `[last - first, ...]`."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes to be copied unchanged."""

    path: Path
    position: int
    target: int
    """Offset from the beginning of the tensor that is written."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plain:
    """A stored tensor, cast to `dtype` if it is stored in another one."""

    stored: StoredTensor
    dtype: torch.dtype
    step: int = 1

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        return TensorInfo(self.dtype, self.stored.shape)

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Copies rows from the files, and frees the memory that reading them took."""
        if not self.stored.shape:
            return files.array(self.stored.chunks[0], self.stored.dtype).to(self.dtype, copy=True).view(1)
        rows = torch.empty((last - first, *self.stored.shape[1:]), dtype=self.dtype)
        for chunk in self.stored.chunks:
            if chunk.offsets[0] < last and first < chunk.offsets[0] + chunk.shape[0]:
                part = chunk.rows(first, last, self.stored.dtype.itemsize)
                box = [slice(o, o + n) for o, n in zip(part.offsets, part.shape, strict=True)]
                box[0] = slice(part.offsets[0] - first, part.offsets[0] - first + part.shape[0])
                rows[tuple(box)].copy_(files.array(part, self.stored.dtype))
                files.release(part, self.stored.dtype)
        return rows

    def spans(self) -> list[Span] | None:
        """Returns the byte ranges that make up the tensor; None if copying bytes is not enough."""
        if self.dtype != self.stored.dtype:
            return None
        shape, spans = self.stored.shape, []
        for chunk in self.stored.chunks:
            if chunk.shape[1:] != shape[1:]:
                return None
            row = math.prod(shape[1:]) * self.dtype.itemsize
            begin = chunk.offsets[0] * row if shape else 0
            spans.append(
                Span(chunk.path, chunk.position, begin, math.prod(chunk.shape) * self.dtype.itemsize)
            )
        return spans


@dataclass(frozen=True, slots=True)
class InMemory:
    """A tensor that is in memory."""

    value: torch.Tensor
    step: int = 1

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        return TensorInfo(self.value.dtype, tuple(self.value.shape))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns a view of rows `first` to `last`."""
        return self.value[first:last]


@dataclass(frozen=True, slots=True)
class RowByRow:
    """Base of contents that compute each row from the same row of a source.

    Type, shape and step are the source's, unless a subclass overrides them.
    """

    source: Content

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        return self.source.tensor

    @property
    def step(self) -> int:
        """The source's step."""
        return self.source.step


@dataclass(frozen=True, slots=True)
class Cast(RowByRow):
    """A source cast to another type, rounded to nearest."""

    dtype: torch.dtype

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        return TensorInfo(self.dtype, self.source.tensor.shape)

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns the source's rows, cast."""
        return self.source.rows(files, first, last).to(self.dtype)


def plain(stored: StoredTensor) -> Plain:
    """Returns a stored tensor as a content, in its own type."""
    return Plain(stored, stored.dtype)


def cast(content: Content, dtype: torch.dtype) -> Content:
    """Returns a content cast to `dtype`; integers, and contents that already have this type, are not cast."""
    if content.tensor.dtype == dtype or not content.tensor.dtype.is_floating_point:
        return content
    if isinstance(content, Plain) and content.stored.dtype == content.dtype:
        return replace(content, dtype=dtype)
    return Cast(content, dtype)


def blocks(content: Content, block_bytes: int, step: int | None = None) -> Iterator[tuple[int, int]]:
    """Yields ranges of rows that cover the content.

    A range has at most `block_bytes`, but at least `step` rows (by default the content's step).
    """
    if not content.tensor.nbytes:
        return
    count = content.tensor.shape[0] if content.tensor.shape else 1
    step = step or content.step
    size = max(1, block_bytes // (row_bytes(content) * step)) * step
    for first in range(0, count, size):
        yield first, min(first + size, count)


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """Returns rows as a flat tensor of bytes."""
    return rows.contiguous().view(-1).view(torch.uint8)


def row_bytes(content: Content) -> int:
    """Returns the number of bytes per row; for a scalar, of the scalar."""
    shape = content.tensor.shape
    return content.tensor.nbytes // shape[0] if shape else content.tensor.nbytes
