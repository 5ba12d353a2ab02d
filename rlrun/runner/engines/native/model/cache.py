"""The paged KV cache: blocks of 16 tokens, allocated by number.

The keys of a block are stored transposed (`[head_dim, 16]`), so that a kernel computes the scores of 16
tokens as one vector; values are not (`[16, head_dim]`). Block 0 is spare: padding rows write to it, and it is
never read.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.models.architecture import Architecture

BLOCK = 16
"""Number of tokens in a block."""


class OutOfBlocks(Exception):
    """Too few blocks are free; the scheduler frees some and tries again."""


def blocks_for(tokens: int) -> int:
    """Returns how many blocks hold `tokens` tokens."""
    return -(-tokens // BLOCK)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every layer, in N blocks."""

    keys: torch.Tensor
    """`[layers, N, kv heads, head_dim, 16]`"""
    values: torch.Tensor
    """`[layers, N, kv heads, 16, head_dim]`"""


def make_cache(model: Architecture, blocks: int, dtype: torch.dtype, device: torch.device) -> KVCache:
    """Returns a zeroed cache of `blocks` blocks and the spare one; on a CPU its memory is used once
    written.
    """
    shape = (model.layers, blocks + 1, model.kv_heads)
    keys = _zeros((*shape, model.head_dim, BLOCK), dtype, device)
    return KVCache(keys, _zeros((*shape, BLOCK, model.head_dim), dtype, device))


def token_bytes(model: Architecture, dtype: torch.dtype) -> int:
    """Returns the size of one token in the cache, in all layers together."""
    return 2 * model.layers * model.kv_heads * model.head_dim * int(dtype.itemsize)


class BlockPool:
    """The free blocks. The last one returned is taken first, because it is still in the processor's
    caches.
    """

    def __init__(self, blocks: int) -> None:
        self._free = np.arange(blocks, 0, -1, dtype=np.int32)
        self._count = blocks
        self.total = blocks

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return self._count

    def take(self, count: int) -> NDArray[np.int32]:
        """Returns the numbers of `count` blocks. Raises OutOfBlocks, and takes none, if fewer are free."""
        if count > self._count:
            raise OutOfBlocks
        self._count -= count
        return self._free[self._count : self._count + count].copy()

    def give_back(self, blocks: NDArray[np.int32]) -> None:
        """Returns blocks to the pool."""
        self._free[self._count : self._count + len(blocks)] = blocks
        self._count += len(blocks)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros come from calloc, which touches no page before its first use; torch.zeros writes them all.
    count = prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)
