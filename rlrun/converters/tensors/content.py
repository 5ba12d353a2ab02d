"""What a tensor to be written consists of. A content makes some of its rows at a time, so that no tensor need
ever be whole in memory; contents stand on each other (stored -> dequantised -> merged -> quantised).
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files, StoredTensor


class Content(Protocol):
    """A tensor that can be made piece by piece; a scalar counts as one row."""

    @property
    def tensor(self) -> TensorInfo:
        """Type and shape."""

    @property
    def step(self) -> int:
        """Rows are asked for in multiples of this (or up to the end)."""

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """`[last - first, ...]`, contiguous."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes to be copied as they are."""

    path: Path
    position: int
    target: int
    """From the beginning of the tensor that is written."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plain:
    """A stored tensor, perhaps in another precision."""

    stored: StoredTensor
    dtype: torch.dtype
    step: int = 1

    @property
    def tensor(self) -> TensorInfo:
        """Type and shape."""
        return TensorInfo(self.dtype, self.stored.shape)

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Copied out of the files; what was read is let go of."""
        if not self.stored.shape:
            return files.array(self.stored.chunks[0], self.stored.dtype).to(self.dtype, copy=True).view(1)
        made = torch.empty((last - first, *self.stored.shape[1:]), dtype=self.dtype)
        for chunk in self.stored.chunks:
            if chunk.offsets[0] < last and first < chunk.offsets[0] + chunk.shape[0]:
                part = chunk.rows(first, last, self.stored.dtype.itemsize)
                box = [slice(o, o + n) for o, n in zip(part.offsets, part.shape, strict=True)]
                box[0] = slice(part.offsets[0] - first, part.offsets[0] - first + part.shape[0])
                made[tuple(box)].copy_(files.array(part, self.stored.dtype))
                files.release(part, self.stored.dtype)
        return made

    def spans(self) -> list[Span] | None:
        """The copies of bytes that make the tensor; None where it takes more than that."""
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
        """Type and shape."""
        return TensorInfo(self.value.dtype, tuple(self.value.shape))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Some rows, not copied."""
        return self.value[first:last]


@dataclass(frozen=True, slots=True)
class RowByRow:
    """The part of a content each of whose rows is made of the same row of another."""

    source: Content

    @property
    def step(self) -> int:
        """The source's."""
        return self.source.step


@dataclass(frozen=True, slots=True)
class Cast(RowByRow):
    """Another content in another precision, rounded to nearest."""

    dtype: torch.dtype

    @property
    def tensor(self) -> TensorInfo:
        """Type and shape."""
        return TensorInfo(self.dtype, self.source.tensor.shape)

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """The source's rows, cast."""
        return self.source.rows(files, first, last).to(self.dtype)


def plain(stored: StoredTensor) -> Plain:
    """A stored tensor as it is."""
    return Plain(stored, stored.dtype)


def cast(content: Content, dtype: torch.dtype) -> Content:
    """A content in another precision; itself where it has that already, or holds no fractions."""
    if content.tensor.dtype == dtype or not content.tensor.dtype.is_floating_point:
        return content
    if isinstance(content, Plain) and content.stored.dtype == content.dtype:
        return replace(content, dtype=dtype)
    return Cast(content, dtype)
