"""The candidates from which each token of a response was drawn, after top-k and top-p cut the vocabulary.

Engines record the candidates, and the trainer computes its log-probs over the same candidates: "Keep Sampling
Mask" of DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556, section 3.1).
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
    """The concatenated candidates of R tokens.

    Example, of a token drawn from {5, 9}, a token of a tool's result, and a token that could only be 7:
    `SamplingMask(ids=np.array([5, 9, 7]), lengths=np.array([2, 0, 1]))`
    """

    ids: Ints
    """`[sum of lengths]` token ids of the candidates."""
    lengths: Ints
    """`[R]` number of candidates of each token. 0: the token was drawn from the whole vocabulary, or was not
    generated."""

    @classmethod
    def whole(cls, count: int) -> SamplingMask:
        """Returns the mask of `count` tokens drawn from the whole vocabulary, or not generated."""
        return cls(np.zeros(0, dtype=np.int32), np.zeros(count, dtype=np.int32))

    @classmethod
    def joined(cls, masks: Sequence[SamplingMask]) -> SamplingMask:
        """Returns the concatenation of masks, in order."""
        masks = [cls.whole(0), *masks]  # NumPy cannot concatenate nothing
        return cls(
            np.concatenate([mask.ids for mask in masks]), np.concatenate([mask.lengths for mask in masks])
        )

    def __len__(self) -> int:
        """Returns R, the number of tokens."""
        return len(self.lengths)

    def part(self, start: int, end: int) -> SamplingMask:
        """Returns the mask of the tokens from `start` to `end` (exclusive)."""
        first, last = int(self.lengths[:start].sum()), int(self.lengths[:end].sum())
        return SamplingMask(self.ids[first:last], self.lengths[start:end])

    def take(self, tokens: NDArray[np.int64]) -> SamplingMask:
        """Returns the mask of the tokens at the given ascending positions."""
        is_kept = np.zeros(len(self.lengths), dtype=np.bool_)
        is_kept[tokens] = True
        return SamplingMask(self.ids[np.repeat(is_kept, self.lengths)], self.lengths[is_kept])


def joined_masks(masks: Sequence[SamplingMask | None], counts: Sequence[int]) -> SamplingMask | None:
    """Returns the concatenation of masks of `counts` tokens each; None if all masks are None.

    A mask that is None counts as `SamplingMask.whole`.
    """
    if all(mask is None for mask in masks):
        return None
    pairs = zip(masks, counts, strict=True)
    return SamplingMask.joined([SamplingMask.whole(count) if mask is None else mask for mask, count in pairs])
