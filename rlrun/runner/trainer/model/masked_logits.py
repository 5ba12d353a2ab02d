"""Restricts logits to the tokens within a sampling mask, one chunk of rows at a time."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.runner.trainer.transfers import to_device

EXCLUDED = -1e9
"""The logit of an excluded token; its probability is 0 at every temperature. Minus infinity would give NaN:
the entropy multiplies a probability by its logarithm, and a slice of the vocabulary may contain no candidate.
"""


@dataclass(frozen=True, slots=True)
class Support:
    """A sampling mask on the trainer's device."""

    ids: torch.Tensor
    """`[N]` int32 token ids of the candidates, row after row."""
    lengths: torch.Tensor
    """`[R]` int64 number of each row's candidates; 0: the whole vocabulary."""
    ends: NDArray[np.int64]
    """`[R + 1]` on the host: the index of each row's first candidate, and N."""

    @classmethod
    def from_mask(cls, mask: SamplingMask, device: torch.device) -> "Support":
        """Returns the mask of R response tokens, on the device."""
        ids = to_device(np.ascontiguousarray(mask.ids, np.int32), device)
        lengths = to_device(mask.lengths.astype(np.int64), device)
        return cls(ids, lengths, np.cumsum([0, *mask.lengths.tolist()]))

    def restrict_(self, logits: torch.Tensor, rows: slice, first: int) -> None:
        """Excludes all but the candidates from the logits `[r, V]` of `rows`, in place.

        `first` is the token id of column 0.
        """
        start, end = int(self.ends[rows.start]), int(self.ends[rows.start + len(logits)])
        lengths, width = self.lengths[rows], logits.shape[1]
        numbers = torch.arange(len(logits), device=logits.device)
        own_rows = torch.repeat_interleave(numbers, lengths, output_size=end - start)
        columns = self.ids[start:end].long() - first
        # Candidates in other ranks' slices of the vocabulary go to an extra column, which is cut off.
        columns = torch.where((columns < 0) | (columns >= width), width, columns)
        excluded = (lengths > 0)[:, None].repeat(1, width + 1)
        excluded[own_rows, columns] = False
        logits.masked_fill_(excluded[:, :width], EXCLUDED)
