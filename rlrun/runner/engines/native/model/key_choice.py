"""The keys that an indexer chooses for sparse attention, in plain torch.

    queries, index queries | keys, index key | values, nothing      `[B, heads, tokens, D]`
        index queries, index keys, weights ─▶ scores ─top-k─▶ mask ─▶ attention of the other heads

The index key of a token is cached as a further head of keys, whose values are zeros, so that it is stored,
copied and evicted like every other. Attention asks for the tokens of a pass in their order, one piece or one
batch at a time; so layers that share a choice get its masks in the same order.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch


class Heads(NamedTuple):
    """What is left for attention."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    seen: torch.Tensor | None
    """Broadcasts to `[B, 1, Q, K]`: the keys that queries see; None: all up to their own."""


@dataclass(slots=True)
class KeyChoice:
    """The choice of one layer's indexer in a pass."""

    top_k: int
    scale: float
    """Multiplies the products of index queries and keys."""
    weights: torch.Tensor
    """`[T, index heads]` float32."""
    masks: list[torch.Tensor | None] = field(default_factory=list)
    """Of each piece of the pass, in order; None: its queries see all keys."""
    _taken: int = 0

    def heads(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor | None
    ) -> Heads:
        """Takes the index heads from queries, keys and values, and narrows `seen` to the chosen keys."""
        count, (batch, _, rows, _) = self.weights.shape[1], queries.shape
        weights = self.weights[self._taken : self._taken + batch * rows].view(batch, rows, count)
        self._taken += batch * rows
        plain = queries.shape[1] - count
        if keys.shape[2] > self.top_k:
            seen = self._chosen(queries[:, plain:].float(), keys[:, -1:].float(), weights, seen)
            self.masks.append(seen)
        else:
            self.masks.append(None)
        return Heads(queries[:, :plain], keys[:, :-1], values[:, :-1], seen)

    def _chosen(
        self, queries: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, seen: torch.Tensor | None
    ) -> torch.Tensor:
        products = ((queries @ keys.transpose(-1, -2)) * self.scale).relu()  # [B, index heads, Q, K]
        scores = torch.einsum("bqh,bhqk->bqk", weights, products)[:, None]
        if seen is None:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        best = scores.masked_fill(~seen, -torch.inf).topk(self.top_k, dim=-1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & seen


@dataclass(slots=True)
class SharedChoice:
    """The choice of an earlier layer of the same pass."""

    choice: KeyChoice
    _pieces: int = 0

    def heads(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor | None
    ) -> Heads:
        """Takes the index head from keys and values, and narrows `seen` to the keys chosen before."""
        mask = self.choice.masks[self._pieces]
        self._pieces += 1
        return Heads(queries, keys[:, :-1], values[:, :-1], seen if mask is None else mask)
