"""The paged KV cache: blocks of 16 tokens, handed out by number.

Keys of a block are stored transposed (`[head_dim, 16]`), so that the scores of 16 tokens are one vector;
values are stored as they come (`[16, head_dim]`). Block 0 belongs to nobody: padding rows write there.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.models.architecture import Architecture

BLOCK = 16
"""Tokens in a block."""


class OutOfBlocks(Exception):
    """No free block; the scheduler makes room."""


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // BLOCK)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every layer, N blocks."""

    keys: torch.Tensor
    """`[layers, N, kv heads, head_dim, 16]`"""
    values: torch.Tensor
    """`[layers, N, kv heads, 16, head_dim]`"""


def make_cache(model: Architecture, blocks: int, dtype: torch.dtype, device: torch.device) -> KVCache:
    """A zeroed cache of `blocks` blocks and the spare one; on a CPU its pages exist once they are written."""
    shape = (model.layers, blocks + 1, model.kv_heads)
    keys = _zeros((*shape, model.head_dim, BLOCK), dtype, device)
    return KVCache(keys, _zeros((*shape, BLOCK, model.head_dim), dtype, device))


def token_bytes(model: Architecture, dtype: torch.dtype) -> int:
    """Cache bytes of one token in all layers."""
    return 2 * model.layers * model.kv_heads * model.head_dim * int(dtype.itemsize)


class BlockPool:
    """Free blocks, last returned first, so that what is in use stays warm in the processor's caches."""

    def __init__(self, blocks: int) -> None:
        self._free = np.arange(blocks, 0, -1, dtype=np.int32)
        self._count = blocks
        self.total = blocks

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return self._count

    def take(self, count: int) -> NDArray[np.int32]:
        """Numbers of `count` blocks. Raises OutOfBlocks, and takes none, where there are fewer."""
        if count > self._count:
            raise OutOfBlocks
        self._count -= count
        return self._free[self._count : self._count + count].copy()

    def give_back(self, blocks: NDArray[np.int32]) -> None:
        """Return blocks taken before."""
        self._free[self._count : self._count + len(blocks)] = blocks
        self._count += len(blocks)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros come from calloc: no page is touched before its first use, where torch.zeros writes them
    # all.
    count = prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)
