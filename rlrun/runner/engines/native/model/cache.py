"""The paged KV cache: blocks of tokens, allocated by number.

Blocks have 16 tokens, whose keys are stored transposed (`[head_dim, 16]`), so that a kernel computes the
scores of 16 tokens as one vector; values are not (`[16, head_dim]`). For flash attention on GPUs, blocks are
pages of 256 tokens. Block 0 is spare: padding rows write to it, and it is never read.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.models.architecture import Architecture

BLOCK = 16
"""Number of tokens in a block; the C++ kernels count on it."""
PAGE = 256
"""Number of tokens in a page: torch's FlashAttention 2 takes multiples of 256 only."""


class OutOfBlocks(Exception):
    """Too few blocks are free; the scheduler frees some and tries again."""


def blocks_for(tokens: int, block: int = BLOCK) -> int:
    """Returns how many blocks of `block` tokens hold `tokens` tokens."""
    return -(-tokens // block)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every layer with attention, in N blocks."""

    keys: torch.Tensor
    """`[layers, N, kv heads, head_dim, 16]`, or pages `[layers, N, 256, kv heads, head_dim]`"""
    values: torch.Tensor
    """`[layers, N, kv heads, 16, head_dim]`, or pages `[layers, N, 256, kv heads, head_dim]`"""
    paged: bool
    """Whether blocks are pages, for flash attention."""

    def copy_tokens(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copies the keys and values of tokens in all layers, from one list of slots to another."""
        block = self.block
        old, old_offsets, new, new_offsets = (
            torch.from_numpy(numbers).to(self.keys.device)
            for slots in (sources, targets)
            for numbers in (slots // block, slots % block)
        )
        for keys, values in zip(self.keys, self.values, strict=True):  # a layer at a time, to bound copies
            if self.paged:
                keys[new, new_offsets] = keys[old, old_offsets]
                values[new, new_offsets] = values[old, old_offsets]
            else:
                keys[new, :, :, new_offsets] = keys[old, :, :, old_offsets]
                values[new, :, new_offsets] = values[old, :, old_offsets]

    @property
    def block(self) -> int:
        """Number of tokens in a block."""
        return block_size(paged=self.paged)


def block_size(*, paged: bool) -> int:
    """Returns the number of tokens in a block."""
    return PAGE if paged else BLOCK


def make_cache(
    model: Architecture, blocks: int, dtype: torch.dtype, device: torch.device, *, paged: bool
) -> KVCache:
    """Returns a zeroed cache of `blocks` blocks and the spare one; on a CPU its memory is used once
    written.
    """
    shape = (model.attention_layers, blocks + 1)
    if paged:
        keys = values = (*shape, PAGE, model.cached_heads, model.head_dim)
    else:
        keys = (*shape, model.cached_heads, model.head_dim, BLOCK)
        values = (*shape, model.cached_heads, BLOCK, model.head_dim)
    return KVCache(zeros(keys, dtype, device), zeros(values, dtype, device), paged)


def token_bytes(model: Architecture, dtype: torch.dtype) -> int:
    """Returns the size of one token in the cache, in all layers together."""
    return 2 * model.attention_layers * model.cached_heads * model.head_dim * int(dtype.itemsize)


class BlockPool:
    """The free blocks. The last one returned is taken first, because it is still in the processor's
    caches.
    """

    def __init__(self, blocks: int, block: int = BLOCK) -> None:
        """`block`: tokens of a block."""
        self.block = block
        self._free = np.arange(blocks, 0, -1, dtype=np.int32)
        self._users = np.zeros(blocks + 1, np.int32)
        """How many prompts and samples use each block."""
        self._count = blocks
        self.total = blocks

    def blocks_for(self, tokens: int) -> int:
        """Returns how many blocks hold `tokens` tokens."""
        return blocks_for(tokens, self.block)

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return self._count

    def take(self, count: int) -> NDArray[np.int32]:
        """Returns the numbers of `count` blocks. Raises OutOfBlocks, and takes none, if fewer are free."""
        if count > self._count:
            raise OutOfBlocks
        self._count -= count
        taken = self._free[self._count : self._count + count].copy()
        self._users[taken] = 1
        return taken

    def share(self, blocks: NDArray[np.int32]) -> None:
        """Notes another user of blocks that are in use; each user gives them back."""
        self._users[blocks] += 1

    def give_back(self, blocks: NDArray[np.int32]) -> None:
        """Returns blocks to the pool once their last user gives them back."""
        self._users[blocks] -= 1
        unused = blocks[self._users[blocks] == 0]
        self._free[self._count : self._count + len(unused)] = unused
        self._count += len(unused)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a tensor of zeros; on a CPU its memory is used once written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros come from calloc, which touches no page before its first use; torch.zeros writes them all.
    count = prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)
