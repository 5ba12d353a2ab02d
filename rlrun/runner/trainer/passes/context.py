"""Context parallelism: which tokens of a pack each rank has, and how the results are gathered.

    pack of T tokens -> pieces -> a rank's queries; keys and values are gathered; all log-probs on every rank

Pieces are cut without regard to documents. With `balanced` there are two pieces per rank, one from the front
and its mirror image from the back, so that causal attention is about the same work on every rank (as in
Megatron-LM and torch's head-tail load balancer).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rlrun.runner.trainer.model.attention import CutDocuments, Documents
from rlrun.runner.trainer.model.varlen import offsets_of
from rlrun.runner.trainer.transfers import to_device


@dataclass(frozen=True, slots=True)
class ContextPart:
    """The part of every pack that a rank has."""

    rank: int
    size: int
    """The number of context-parallel ranks."""
    balanced: bool

    def pieces(self, total: int) -> list[tuple[int, int]]:
        """Returns start and end of this rank's pieces of `total` tokens, in order."""
        if not self.balanced:
            length = total // self.size
            return [(self.rank * length, (self.rank + 1) * length)]
        length = total // (2 * self.size)
        numbers = (self.rank, 2 * self.size - 1 - self.rank)
        return [(number * length, (number + 1) * length) for number in numbers]

    def tokens(self, total: int) -> NDArray[np.int64]:
        """Returns the positions in the pack of this rank's tokens."""
        return np.concatenate([np.arange(*piece) for piece in self.pieces(total)])

    def arrival(self) -> tuple[int, ...]:
        """Returns the place of each of a pack's pieces in the concatenation of all ranks' parts."""
        pieces = 2 * self.size if self.balanced else self.size
        return tuple(self.gathered(pieces).tolist())

    def gathered(self, total: int) -> NDArray[np.int64]:
        """Returns `[total]`: the position of each token in the concatenation of all ranks' parts."""
        parts = [ContextPart(rank, self.size, self.balanced).tokens(total) for rank in range(self.size)]
        positions = np.empty(total, np.int64)
        positions[np.concatenate(parts)] = np.arange(total)
        return positions


WHOLE = ContextPart(0, 1, balanced=False)
"""The whole pack: no context parallelism."""


def cut_documents(whole: Documents, part: ContextPart, device: torch.device) -> CutDocuments:
    """Returns the keys that this rank's queries can see in packed documents."""
    lengths, ends = whole.lengths, np.cumsum(whole.lengths)
    query_lengths, key_lengths, key_positions = [], [], []
    positions = part.gathered(int(ends[-1]))
    for start, end in part.pieces(int(ends[-1])):
        for length, document_end in zip(lengths, ends.tolist(), strict=True):
            first, stop = document_end - length, min(document_end, end)
            if stop > max(first, start):
                # causal: queries of a piece see the document from its beginning to the last of them
                query_lengths.append(stop - max(first, start))
                key_lengths.append(stop - first)
                key_positions.append(positions[first:stop])
    return CutDocuments(
        keys=to_device(np.concatenate(key_positions), device),
        query_lengths=tuple(query_lengths),
        key_lengths=tuple(key_lengths),
        query_offsets=to_device(offsets_of(query_lengths), device),
        key_offsets=to_device(offsets_of(key_lengths), device),
        whole=whole,
        arrival=part.arrival(),
        rank=part.rank,
        ranks=part.size,
    )


class GatherResponses(torch.autograd.Function):
    """Turns `[K, R']` values of a rank's response tokens into `[K, R]` of all of them, on every rank.

    Every rank then computes the same loss. The backward pass needs no communication: a rank keeps the
    gradient of its own tokens, and the other ranks have the gradients of theirs.
    """

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, indices: torch.Tensor, total: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.save_for_backward(indices)
        everything = values.new_zeros(len(values), total)
        everything[:, indices] = values
        dist.all_reduce(everything, dist.ReduceOp.SUM, group)
        return everything

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        return grad[:, indices], None, None, None
