"""Context parallelism: which tokens of a pack each rank holds, and how the results come together.

    pack of T tokens -> pieces -> a rank's queries; keys and values are gathered; log-probs of all on each

Pieces are cut without regard to documents. With `balanced` they are twice as many as there are ranks, and a
rank holds one from the front and its mirror image from the back: causal attention then is about the same work
for all (as in Megatron-LM and torch's head-tail load balancer).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rlrun.runner.trainer.model.attention import CutDocuments, offsets_of


@dataclass(frozen=True, slots=True)
class ContextPart:
    """Which part of every pack a rank holds."""

    rank: int
    size: int
    """Ranks of the group."""
    balanced: bool

    def pieces(self, total: int) -> list[tuple[int, int]]:
        """Start and end of this rank's pieces of `total` tokens, in order."""
        if not self.balanced:
            length = total // self.size
            return [(self.rank * length, (self.rank + 1) * length)]
        length = total // (2 * self.size)
        places = (self.rank, 2 * self.size - 1 - self.rank)
        return [(place * length, (place + 1) * length) for place in places]

    def tokens(self, total: int) -> NDArray[np.int64]:
        """Positions in the pack of this rank's tokens."""
        return np.concatenate([np.arange(*piece) for piece in self.pieces(total)])

    def gathered(self, total: int) -> NDArray[np.int64]:
        """`[total]`: where each token lies when the parts of all ranks are laid one after the other."""
        parts = [ContextPart(rank, self.size, self.balanced).tokens(total) for rank in range(self.size)]
        places = np.empty(total, np.int64)
        places[np.concatenate(parts)] = np.arange(total)
        return places


WHOLE = ContextPart(0, 1, balanced=False)
"""Everything: no context parallelism."""


def cut_documents(lengths: list[int], part: ContextPart, device: torch.device) -> CutDocuments:
    """What of documents of these lengths, one after the other, this rank's queries see."""
    ends = np.cumsum(lengths)
    queries, keys, chosen = [], [], []
    places = part.gathered(int(ends[-1]))
    for start, end in part.pieces(int(ends[-1])):
        for length, last in zip(lengths, ends.tolist(), strict=True):
            first, stop = last - length, min(last, end)
            if stop > max(first, start):
                queries.append(stop - max(first, start))
                keys.append(stop - first)
                chosen.append(places[first:stop])
    return CutDocuments(
        keys=torch.from_numpy(np.concatenate(chosen)).to(device),
        query_lengths=tuple(queries),
        key_lengths=tuple(keys),
        query_offsets=offsets_of(queries).to(device),
        key_offsets=offsets_of(keys).to(device),
    )


class Together(torch.autograd.Function):
    """`[2, R']` values of a rank's response tokens to `[2, R]` of all, the same on each rank of the group.

    Every rank computes the same loss from them; its gradient goes to its own tokens.
    """

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, found: torch.Tensor, total: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.save_for_backward(found)
        everything = values.new_zeros(len(values), total)
        everything[:, found] = values
        dist.all_reduce(everything, dist.ReduceOp.SUM, group)
        return everything

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (found,) = ctx.saved_tensors
        return grad[:, found], None, None, None
