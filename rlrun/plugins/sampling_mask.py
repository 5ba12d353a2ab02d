"""The tokens that each token of a response was drawn from, where top-k and top-p cut the vocabulary.

Engines record them, and the trainer takes its log-probs over the same tokens: "Keep Sampling Mask" of
DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
else:
    from rlrun.plugins import lazy_numpy as np


@dataclass(frozen=True, slots=True)
class SamplingMask:
    """The candidates of R tokens, end to end.

    Example: a token drawn from {5, 9}, a token that a tool gave, a token that could only be 7:
    `SamplingMask(ids=np.array([5, 9, 7]), lengths=np.array([2, 0, 1]))`
    """

    ids: Ints
    """`[sum of lengths]` token ids."""
    lengths: Ints
    """`[R]` number of candidates of each token; 0: it was drawn from the whole vocabulary, or not drawn."""

    @classmethod
    def whole(cls, count: int) -> SamplingMask:
        """The mask of `count` tokens that were drawn from the whole vocabulary, or not drawn at all."""
        return cls(np.zeros(0, dtype=np.int32), np.zeros(count, dtype=np.int32))

    @classmethod
    def joined(cls, masks: Sequence[SamplingMask]) -> SamplingMask:
        """One mask for the tokens of several, in order."""
        none = cls.whole(0)
        parts = [none, *masks]
        return cls(
            np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    def __len__(self) -> int:
        """R."""
        return len(self.lengths)

    def part(self, start: int, end: int) -> SamplingMask:
        """The mask of tokens `start` to `end` (exclusive)."""
        first, last = int(self.lengths[:start].sum()), int(self.lengths[:end].sum())
        return SamplingMask(self.ids[first:last], self.lengths[start:end])

    def take(self, tokens: NDArray[np.int64]) -> SamplingMask:
        """The mask of the tokens at these ascending positions."""
        kept = np.zeros(len(self.lengths), dtype=np.bool_)
        kept[tokens] = True
        return SamplingMask(self.ids[np.repeat(kept, self.lengths)], self.lengths[kept])


def joined_masks(masks: Sequence[SamplingMask | None], counts: Sequence[int]) -> SamplingMask | None:
    """One mask for parts of these numbers of tokens; None where no part has a mask."""
    if all(mask is None for mask in masks):
        return None
    pairs = zip(masks, counts, strict=True)
    return SamplingMask.joined([SamplingMask.whole(count) if mask is None else mask for mask, count in pairs])
