"""Logits restricted to the tokens that a sampling mask leaves, a chunk of rows at a time."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.plugins.sampling_mask import SamplingMask

EXCLUDED = -1e9
"""The logit of an excluded token: its probability is 0 at every temperature. Minus infinity would not do: the
entropy multiplies a probability by its logarithm, and a slice of the vocabulary may have no candidate at all.
"""


@dataclass(frozen=True, slots=True)
class Support:
    """A sampling mask on the trainer's device."""

    ids: torch.Tensor
    """`[N]` int32: the candidates, row after row."""
    lengths: torch.Tensor
    """`[R]` int64: how many of them each row has; 0: the whole vocabulary."""
    ends: NDArray[np.int64]
    """`[R + 1]` on the host: where each row's candidates start, and N."""

    @classmethod
    def of(cls, mask: SamplingMask, device: torch.device) -> "Support":
        """The mask of R response tokens."""
        ids = torch.from_numpy(np.ascontiguousarray(mask.ids, np.int32)).to(device)
        lengths = torch.from_numpy(mask.lengths.astype(np.int64)).to(device)
        return cls(ids, lengths, np.cumsum([0, *mask.lengths.tolist()]))

    def restrict_(self, logits: torch.Tensor, rows: slice, first: int) -> None:
        """Exclude all other tokens from the logits `[r, V]` of these rows; `first` is the id of column 0."""
        start, end = int(self.ends[rows.start]), int(self.ends[rows.start + len(logits)])
        lengths, width = self.lengths[rows], logits.shape[1]
        numbers = torch.arange(len(logits), device=logits.device)
        own_rows = torch.repeat_interleave(numbers, lengths, output_size=end - start)
        columns = self.ids[start:end].long() - first
        # Candidates of other ranks' slices of the vocabulary go to a column of their own.
        columns = torch.where((columns < 0) | (columns >= width), width, columns)
        excluded = (lengths > 0)[:, None].repeat(1, width + 1)
        excluded[own_rows, columns] = False
        logits.masked_fill_(excluded[:, :width], EXCLUDED)
