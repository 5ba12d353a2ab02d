"""Computes FP8 weights and their factors, a few rows at a time. `fp8` describes the layouts."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from rlrun.converters.tensors.blocks import blocks
from rlrun.converters.tensors.content import Content
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files

Granularity = Literal["block", "channel", "tensor"]
BLOCK = 128
_MAX = torch.finfo(torch.float8_e4m3fn).max
_SCAN_BYTES = 16 << 20


class Factors:
    """The float32 factors that a quantised weight has to be multiplied by, as a content.

    Factors that are computed while the weight is quantised are kept in memory, so that the weight is read
    only once. They are few: one per row or per block.
    """

    def __init__(self, weight: Content, granularity: Granularity) -> None:
        height, width = weight.tensor.shape
        self._weight = weight
        self._granularity = granularity
        self._per_row = BLOCK if granularity == "block" else 1
        shape = {"block": (-(-height // BLOCK), -(-width // BLOCK)), "channel": (height, 1), "tensor": (1,)}
        self.tensor = TensorInfo(torch.float32, shape[granularity])
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
        scaled = _scaled(rows, self.factors.compute(files, rows, first), torch.div)
        return scaled.clamp_(-_MAX, _MAX).to(self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class DequantisedWeight:
    """An FP8 weight multiplied by its factors."""

    source: Content
    factors: Content
    dtype: torch.dtype

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        return TensorInfo(self.dtype, self.source.tensor.shape)

    @property
    def step(self) -> int:
        """The number of rows that are computed together, because they share factors."""
        return math.lcm(self._per_row, self.source.step)

    @property
    def _per_row(self) -> int:
        shape = self.factors.tensor.shape
        per_row = len(shape) == 2 and shape[1] == 1 and shape[0] == self.source.tensor.shape[0]
        return BLOCK if len(shape) == 2 and not per_row else 1

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows of the weight; the multiplication is in float32."""
        rows = _widened(self.source.rows(files, first, last))
        count = self.factors.tensor.shape[0] if self.factors.tensor.shape else 1
        if count == 1:
            factors = self.factors.rows(files, 0, 1)
        else:
            factors = self.factors.rows(files, first // self._per_row, -(-last // self._per_row))
        return _scaled(rows, factors.float(), torch.mul).to(self.dtype)


def _scaled(
    rows: torch.Tensor, factors: torch.Tensor, operation: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Applies an operation to rows and their factors."""
    if factors.ndim < 2 or (factors.shape[1] == 1 and factors.shape[0] == rows.shape[0]):
        return operation(rows, factors)
    scaled = operation(_tiles(rows), factors[:, None, :, None]).flatten(2).flatten(0, 1)
    return scaled[: rows.shape[0], : rows.shape[1]]


def _tiles(rows: torch.Tensor) -> torch.Tensor:
    """Returns the rows as `[blocks, 128, blocks, 128]`, padded with zeros."""
    height, width = (-size % BLOCK for size in rows.shape)
    if height or width:
        rows = torch.nn.functional.pad(rows, (0, width, 0, height))
    return rows.view(rows.shape[0] // BLOCK, BLOCK, rows.shape[1] // BLOCK, BLOCK)


def _largest(rows: torch.Tensor) -> torch.Tensor:
    """Returns the largest magnitude of each block, `[blocks, blocks]`.

    Reduces over a block's rows first, which reads the memory in order.
    """
    tiles = _tiles(rows.abs())
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
