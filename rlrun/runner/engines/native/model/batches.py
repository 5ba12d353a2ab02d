"""What passes take: prompts one after the other, or one token for each running row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.engines.native.model.cache import BLOCK, blocks_for

Int64 = NDArray[np.int64]
DECODE_COLUMNS = 7


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """M rows, each with one token to process."""

    columns: Int64
    """`[7, M]`: the tokens; their absolute positions; the slots where their keys and values go (block * 16 +
    offset); numbers of own tokens, this one included; rows of `suffix_tables`; rows of `prefix_tables`, equal
    ones side by side; lengths of the prompts."""
    prefix_tables: NDArray[np.int32]
    """`[S, W]` blocks of each prompt."""
    suffix_tables: NDArray[np.int32]
    """`[S, W]` blocks of each sample."""

    def gathered(self) -> tuple[Int64, NDArray[np.bool_]]:
        """Blocks `[M, W]` of every row, the prompt's and then its own, and which of their tokens exist."""
        suffix_lengths, seats, prefix_seats, prefix_lengths = self.columns[3:]
        parts, masks = [], []
        for tables, rows, lengths in (
            (self.prefix_tables, prefix_seats, prefix_lengths),
            (self.suffix_tables, seats, suffix_lengths),
        ):
            width = blocks_for(int(lengths.max()))
            parts.append(tables[rows, :width])
            masks.append(np.arange(width * BLOCK) < lengths[:, None])
        return np.concatenate(parts, 1, dtype=np.int64), np.concatenate(masks, 1)


def packed_prompts(
    prompts: Sequence[NDArray[np.int32]], size: int, blocks: Sequence[NDArray[np.int32]] | None = None
) -> Int64:
    """`[3, size]`: tokens, positions, and slots of the cache; zeros beyond the last prompt.

    `blocks`: where the keys and values of each prompt go; None: all to slot 0, which nobody reads.
    """
    positions = np.concatenate([np.arange(len(prompt)) for prompt in prompts])
    packed = np.zeros((3, size), np.int64)
    packed[0, : len(positions)] = np.concatenate(prompts)
    packed[1, : len(positions)] = positions
    if blocks is not None:
        own = [np.repeat(each, BLOCK)[: len(prompt)] for each, prompt in zip(blocks, prompts, strict=True)]
        starts = np.concatenate(own, dtype=np.int64) * BLOCK
        packed[2, : len(positions)] = starts + positions % BLOCK
    return packed
