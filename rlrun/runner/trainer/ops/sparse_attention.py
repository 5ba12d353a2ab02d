"""DeepSeek sparse attention in plain torch: the choice of keys, and attention to chosen keys alone.

    index queries, index key, weights ─▶ scores ─top-k─▶ indices [T, W] ─▶ mask ─▶ attention

Scores and masks are made for a few queries of a document at a time, so that memory grows with the number of
tokens; the backward pass makes them again. The cost is that of attention to all keys: nothing here skips the
products with keys that were not chosen.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from rlrun.models.architecture import INDEX_SCORES
from rlrun.runner.trainer.ops.attention import tree_mask

MASK_ELEMENTS = 1 << 25
"""Largest number of elements of a mask at a time."""


class _Piece(NamedTuple):
    """A few queries of a document, and all of its keys."""

    queries: slice
    keys: slice
    first: int
    """Position in the document's keys of the first query's own key."""
    ends: torch.Tensor | None
    """`[keys]`: `Forest.ends` of the document's tokens, if it is a tree."""

    def visible(self, device: torch.device) -> torch.Tensor:
        """Returns `[queries, keys]`: which keys come before a query, or are its own."""
        rows = self.queries.stop - self.queries.start
        if self.ends is not None:
            return tree_mask(self.ends)[self.first : self.first + rows]
        own = torch.arange(self.first, self.first + rows, device=device)
        return torch.arange(self.keys.stop - self.keys.start, device=device) <= own[:, None]


def _pieces(
    query_lengths: Sequence[int], key_lengths: Sequence[int], ends: torch.Tensor | None, elements: int
) -> Iterator[_Piece]:
    """Yields the documents in pieces with at most `elements` pairs of a query and a key, or one query."""
    query_start = key_start = 0
    for queries, keys in zip(query_lengths, key_lengths, strict=True):
        rows, document = max(1, elements // keys), slice(key_start, key_start + keys)
        own_ends = None if ends is None else ends[document] - key_start
        for start in range(0, queries, rows):
            stop = min(start + rows, queries)
            places = slice(query_start + start, query_start + stop)
            yield _Piece(places, document, keys - queries + start, own_ends)
        query_start, key_start = query_start + queries, key_start + keys


@torch.library.custom_op("rlrun::choose_keys", mutates_args=())
def choose_keys(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    top_k: int,
    ends: torch.Tensor | None,
) -> torch.Tensor:
    """Returns `[T, W]` int32: the chosen keys of every query, as positions in its document; W is `top_k`, or
    the longest document's number of keys if it is smaller.

    `query` `[T, N, D]`, `key` `[K, D]`, `weights` `[T, N]` float32. Positions behind a query's own may be
    among them if fewer than W keys are visible, and documents of at most W keys have zeros: queries see all
    of theirs. A row of scores has all keys of its document, as in transformers, so that torch chooses the
    same of equal ones. One operator, so that checkpointing recomputes or saves the choice as a whole.
    """
    width = min(top_k, max(key_lengths))
    chosen = query.new_zeros(len(query), width, dtype=torch.int32)
    heads, scale = query.shape[1], query.shape[2] ** -0.5
    for piece in _pieces(query_lengths, key_lengths, ends, INDEX_SCORES // heads):
        if piece.keys.stop - piece.keys.start <= width:
            continue
        queries, keys = query[piece.queries].float(), key[piece.keys].float()
        scores = (queries @ keys.T).mul_(scale).relu_()  # [queries, N, keys]
        total = (weights[piece.queries, None] @ scores).squeeze(1)
        total = total.masked_fill(~piece.visible(query.device), -torch.inf)
        chosen[piece.queries] = total.topk(width, dim=-1).indices.to(torch.int32)
    return chosen


@choose_keys.register_fake
def _(  # noqa: PLR0917
    query: Any, key: Any, weights: Any, query_lengths: Any, key_lengths: Any, top_k: int, ends: Any
) -> Any:
    return query.new_empty(len(query), min(top_k, max(key_lengths)), dtype=torch.int32)


@torch.library.custom_op("rlrun::sparse_attention", mutates_args=())
def sparse_attention(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    chosen: torch.Tensor,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    scale: float,
    ends: torch.Tensor | None,
) -> torch.Tensor:
    """Returns attention `[T, N, V]` of `[T, N, H]` queries to the `chosen` `[T, W]` of `[K, N, H]` keys, and
    to all keys of documents with at most W. Both are causal.
    """
    output = query.new_empty(*query.shape[:2], value.shape[2])
    for piece in _pieces(query_lengths, key_lengths, ends, MASK_ELEMENTS):
        keys, values = key[piece.keys], value[piece.keys]
        output[piece.queries] = _attend(query[piece.queries], keys, values, _mask(piece, chosen), scale)
    return output


@sparse_attention.register_fake
def _(  # noqa: PLR0917
    query: Any, key: Any, value: Any, chosen: Any, query_lengths: Any, key_lengths: Any, scale: Any, ends: Any
) -> Any:
    return query.new_empty(*query.shape[:2], value.shape[2])


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    query, key, value, chosen, *lengths, scale, ends = inputs
    ctx.save_for_backward(query, key, value, chosen, ends)
    ctx.settings = *lengths, scale


def _gradients(ctx: Any, grad: torch.Tensor) -> Any:
    """Returns the gradients of queries, keys and values, after attending once more, piece by piece."""
    query, key, value, chosen, ends = ctx.saved_tensors
    query_lengths, key_lengths, scale = ctx.settings
    query_grad = torch.empty_like(query)
    # in float32: a key gets a gradient from every piece of its document
    key_grad, value_grad = (torch.zeros_like(tensor, dtype=torch.float32) for tensor in (key, value))
    for piece in _pieces(query_lengths, key_lengths, ends, MASK_ELEMENTS):
        parts = query[piece.queries], key[piece.keys], value[piece.keys]
        with torch.enable_grad():
            q, k, v = (part.detach().requires_grad_() for part in parts)
            output = _attend(q, k, v, _mask(piece, chosen), scale)
        query_grad[piece.queries], *of_keys = torch.autograd.grad(output, (q, k, v), grad[piece.queries])
        key_grad[piece.keys] += of_keys[0]
        value_grad[piece.keys] += of_keys[1]
    return query_grad, key_grad.to(key.dtype), value_grad.to(value.dtype), None, None, None, None, None


sparse_attention.register_autograd(_gradients, setup_context=_save)


def _mask(piece: _Piece, chosen: torch.Tensor) -> torch.Tensor:
    """Returns `[queries, keys]`: which keys the queries of a piece see."""
    visible = piece.visible(chosen.device)
    if visible.shape[1] <= chosen.shape[1]:
        return visible
    return visible & torch.zeros_like(visible).scatter_(1, chosen[piece.queries].long(), True)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    return scaled_dot_product_attention(q, k, v, mask, scale=scale)[0].transpose(0, 1)
