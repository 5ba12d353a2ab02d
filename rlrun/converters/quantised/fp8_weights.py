"""Computes FP8 weights and their factors, a few rows at a time. `fp8` describes the layouts."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from rlrun.converters.tensors.content import Content, blocks
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files

Granularity = Literal["block", "channel", "tensor"]
Layout = tuple[int, int] | Literal["channel", "tensor"]
"""What shares a factor: a block of some rows and columns, a row, or the whole weight."""
BLOCK = 128
_MAX = torch.finfo(torch.float8_e4m3fn).max
_SCAN_BYTES = 16 << 20


class Factors:
    """The float32 factors that a quantised weight has to be multiplied by, as a content.

    Factors that are computed while the weight is quantised are kept in memory, so that the weight is read
    only once. They are few: one per row or per block.
    """

    def __init__(self, weight: Content, granularity: Granularity) -> None:
        self._weight = weight
        self._granularity = granularity
        self._per_row = BLOCK if granularity == "block" else 1
        self.block = block_of((BLOCK, BLOCK) if granularity == "block" else granularity, weight.tensor.shape)
        shape = (1,) if granularity == "tensor" else grid(weight.tensor.shape, self.block)
        self.tensor = TensorInfo(torch.float32, shape)
        self.step = math.lcm(self._per_row, weight.step) // self._per_row
        self._values = torch.zeros(self.tensor.shape)
        self._known = torch.zeros(self.tensor.shape[0], dtype=torch.bool)
        self._lock = threading.Lock()

    @property
    def weight_step(self) -> int:
        """Returns the number of rows of the weight that are quantised together."""
        return self.step * self._per_row

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns the factors `first` to `last`."""
        if self._granularity == "tensor":
            return self._whole(files)
        if not self._known[first:last].all():
            end = min(last * self._per_row, self._weight.tensor.shape[0])
            begin = first * self._per_row
            self.compute(files, self._weight.rows(files, begin, end).float(), begin)
        return self._values[first:last]

    def compute(self, files: Files, rows: torch.Tensor, begin: int) -> torch.Tensor:
        """Computes the factors of these rows (float32); `begin` is the first row's index in the weight."""
        if self._granularity == "tensor":
            return self._whole(files)
        largest = rows.abs().amax(1, keepdim=True) if self._granularity == "channel" else _largest(rows)
        first = begin // self._per_row
        self._use_device_of(largest)
        self._values[first : first + len(largest)] = _positive(largest / _MAX)
        self._known[first : first + len(largest)] = True
        return self._values[first : first + len(largest)]

    def _whole(self, files: Files) -> torch.Tensor:
        """Returns the single factor of the whole weight; the first call reads the whole weight."""
        with self._lock:
            if not self._known.all():
                spans = blocks(self._weight, _SCAN_BYTES)
                pieces = (self._weight.rows(files, first, last) for first, last in spans)
                largest = torch.stack([rows.float().abs().max() for rows in pieces]).max()
                self._use_device_of(largest)
                self._values[0] = _positive(largest / _MAX)
                self._known[0] = True
        return self._values

    def _use_device_of(self, largest: torch.Tensor) -> None:
        """Keeps the factors where the weight is: a trainer's weights may be on a GPU."""
        if self._values.device != largest.device:
            self._values = torch.zeros_like(self._values, device=largest.device)


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight in FP8."""

    source: Content
    factors: Factors

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        return TensorInfo(torch.float8_e4m3fn, self.source.tensor.shape)

    @property
    def step(self) -> int:
        """The number of rows that are computed together, because they share factors."""
        return self.factors.weight_step

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows of the weight divided by their factors, rounded to nearest."""
        rows = self.source.rows(files, first, last).float()
        factors = self.factors.compute(files, rows, first)
        if factors.numel() == 1:
            scaled = rows / factors
        else:
            scaled = _scaled(rows, factors, torch.div, self.factors.block)
        return scaled.clamp_(-_MAX, _MAX).to(self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class DequantisedWeight:
    """An FP8 weight multiplied by its factors."""

    source: Content
    factors: Content
    block: tuple[int, int]
    """Rows and columns of the numbers that share a factor."""
    dtype: torch.dtype

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        return TensorInfo(self.dtype, self.source.tensor.shape)

    @property
    def step(self) -> int:
        """The number of rows that are computed together, because they share factors."""
        return self.source.step if self._is_scalar else math.lcm(self.block[0], self.source.step)

    @property
    def _is_scalar(self) -> bool:
        return math.prod(self.factors.tensor.shape) == 1

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows of the weight; the multiplication is in float32."""
        rows = _widened(self.source.rows(files, first, last))
        if self._is_scalar:
            return (rows * self.factors.rows(files, 0, 1).float()).to(self.dtype)
        height = self.block[0]
        factors = self.factors.rows(files, first // height, -(-last // height))
        return _scaled(rows, factors.float(), torch.mul, self.block).to(self.dtype)


def block_of(layout: Layout, shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the rows and columns that share a factor in a matrix of this shape."""
    height, width = shape
    match layout:
        case "tensor":
            return height, width
        case "channel":
            return 1, width
        case block:
            return block


def grid(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    """Returns how many blocks a matrix has vertically and horizontally; the last ones may be smaller."""
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _scaled(
    rows: torch.Tensor,
    factors: torch.Tensor,
    operation: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    block: tuple[int, int],
) -> torch.Tensor:
    """Applies an operation to rows and the factors `[blocks, blocks]` of their blocks."""
    scaled = operation(_tiles(rows, block), factors[:, None, :, None]).flatten(2).flatten(0, 1)
    return scaled[: rows.shape[0], : rows.shape[1]]


def _tiles(rows: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Returns the rows as `[blocks, rows of a block, blocks, columns of a block]`, padded with zeros."""
    height, width = (-size % length for size, length in zip(rows.shape, block, strict=True))
    if height or width:
        rows = torch.nn.functional.pad(rows, (0, width, 0, height))
    down, across = grid(rows.shape, block)
    return rows.view(down, block[0], across, block[1])


def _largest(rows: torch.Tensor) -> torch.Tensor:
    """Returns the largest magnitude of each block, `[blocks, blocks]`.

    Reduces over a block's rows first, which reads the memory in order.
    """
    tiles = _tiles(rows.abs(), (BLOCK, BLOCK))
    return tiles.flatten(2).amax(1).view(tiles.shape[0], tiles.shape[2], BLOCK).amax(2)


def _widened(rows: torch.Tensor) -> torch.Tensor:
    """Returns rows in float32. A table of the 256 values takes a seventh of the time of torch's cast."""
    if rows.dtype != torch.float8_e4m3fn:
        return rows.float()
    table = torch.arange(256, dtype=torch.uint8).view(rows.dtype).float()
    return table.index_select(0, rows.view(-1).view(torch.uint8).int()).view(rows.shape)


def _positive(factors: torch.Tensor) -> torch.Tensor:
    """Replaces factors of 0 by 1: blocks of zeros have to be divided by some factor too."""
    return torch.where(factors > 0, factors, 1.0)
