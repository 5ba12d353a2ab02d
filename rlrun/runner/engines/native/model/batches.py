"""The inputs of forward passes: packed prompts for prefill, or one token per running row for decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.engines.native.model.cache import BLOCK, blocks_for

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
DECODE_COLUMNS = 7
"""Length of the first dimension of `DecodeBatch.columns`; the C++ kernels count on it."""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """M rows with one token each."""

    columns: Int64
    """`[7, M]`: tokens; positions in the sequence; cache slots for keys and values (block * 16 + offset);
    number of the sample's own tokens, this one included; rows of `suffix_tables`; rows of `prefix_tables`,
    equal ones adjacent; lengths of the prompts."""
    prefix_tables: NDArray[np.int32]
    """`[S, W]` cache blocks of each prompt."""
    suffix_tables: NDArray[np.int32]
    """`[S, W]` cache blocks of each sample's own tokens."""
    block: int = BLOCK
    """Tokens of a block."""

    def gathered_blocks(self) -> tuple[Int64, Int64]:
        """Returns the blocks `[M, W]` of every row, the prompt's and then its own, and the distance of each
        of their tokens to the row's token: 0 for itself, negative where there is no token.
        """
        suffix_lengths, seats, prefix_seats, prefix_lengths = self.columns[3:]
        blocks, distances = [], []
        for tables, rows, lengths, following in (
            (self.prefix_tables, prefix_seats, prefix_lengths, suffix_lengths),
            (self.suffix_tables, seats, suffix_lengths, 0 * suffix_lengths),
        ):
            width = blocks_for(int(lengths.max()), self.block)
            blocks.append(tables[rows, :width])
            before_end = lengths[:, None] - 1 - np.arange(width * self.block)
            distances.append(np.where(before_end < 0, -1, before_end + following[:, None]))
        return np.concatenate(blocks, 1, dtype=np.int64), np.concatenate(distances, 1)


def packed_prompts(
    prompts: Sequence[NDArray[np.int32]],
    size: int,
    blocks: Sequence[NDArray[np.int32]] | None = None,
    block: int = BLOCK,
    starts: Sequence[int] = (),
) -> Int64:
    """Returns `[3, size]`: tokens, positions and cache slots; zeros beyond the last prompt.

    `blocks`: the cache blocks of each prompt, of `block` tokens each. None: all keys and values go to slot 0,
    which is never read. `starts`: how many tokens of each prompt are left out, because they are in the cache;
    empty: none.
    """
    firsts = starts or [0] * len(prompts)
    spans = [slice(first, len(prompt)) for first, prompt in zip(firsts, prompts, strict=True)]
    positions = np.concatenate([np.arange(span.start, span.stop) for span in spans])
    packed = np.zeros((3, size), np.int64)
    packed[0, : len(positions)] = np.concatenate(
        [prompt[span] for prompt, span in zip(prompts, spans, strict=True)]
    )
    packed[1, : len(positions)] = positions
    if blocks is not None:
        block_of_token = [
            np.repeat(own_blocks, block)[span] for own_blocks, span in zip(blocks, spans, strict=True)
        ]
        begins = np.concatenate(block_of_token, dtype=np.int64) * block
        packed[2, : len(positions)] = begins + positions % block
    return packed
