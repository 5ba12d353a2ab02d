"""Causal attention within each document of a packed batch; the cost is the sum of the squares of their
lengths.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn

from rlrun.runner.trainer.compat.kernels import VarlenCall, varlen_backward, varlen_forward
from rlrun.runner.trainer.cpu_ops.attention import cut_attention
from rlrun.runner.trainer.cpu_ops.attention import packed_attention as document_attention
from rlrun.runner.trainer.cpu_ops.library import on_gpu
from rlrun.runner.trainer.cpu_ops.sinks import sink_slopes, with_sinks
from rlrun.runner.trainer.model.routing import Routing


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the documents of a packed batch of T tokens lie."""

    lengths: tuple[int, ...]
    """In order; they sum to T."""
    offsets: torch.Tensor
    """`[documents + 1]` int32, on the batch's device: the start of each, and T."""
    routing: Routing | None = None
    """Which experts their tokens go to; None: routers decide."""

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> "Documents":
        """Documents of these lengths, one after the other."""
        return cls(tuple(lengths), offsets_of(lengths).to(device))


@dataclass(frozen=True, slots=True)
class CutDocuments:
    """Documents of which a rank has some queries, and sees all keys up to the last of them.

    Query i of q queries and k keys of a document attends to its first k - q + i + 1 keys.
    """

    keys: torch.Tensor
    """`[K]` int64: which of the keys of all ranks, in the order they are gathered in."""
    query_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    query_offsets: torch.Tensor
    """As in `Documents`, of the rank's queries and of `keys`."""
    key_offsets: torch.Tensor
    routing: Routing | None = None
    """As in `Documents`, for the rank's tokens."""


def offsets_of(lengths: list[int]) -> torch.Tensor:
    """`[N + 1]` int32: where pieces of these lengths start, and where the last one ends."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@dataclass(frozen=True, slots=True)
class Reach:
    """What a layer's attention sees beside the keys of its document up to a query's own."""

    scale: float
    """Of the products of queries and keys."""
    window: int | None = None
    """How many of these keys, counted from the query's own; None: all."""
    sinks: torch.Tensor | None = None
    """`[N]` logits of a key without a value (`sinks`)."""


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents | CutDocuments,
    reach: Reach,
) -> torch.Tensor:
    """`[T, N, H]`: queries on `[T, K, H]` keys and values (K divides N), each document by itself.

    Half precision on CUDA runs torch's variable-length kernel; everything else a document at a time. With
    `CutDocuments`, keys and values are those of all context-parallel ranks. Values narrower than keys are
    filled up with zeros, as kernels take one width.
    """
    width = value.shape[-1]
    value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
    return _attention(query, key, value, documents, reach)[..., :width]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents | CutDocuments,
    reach: Reach,
) -> torch.Tensor:
    plain = query.dtype == torch.float32 or not on_gpu(query)
    settings = reach.scale, reach.window, reach.sinks
    if isinstance(documents, Documents):
        if plain:
            return document_attention(query, key, value, documents.lengths, *settings)
        lengths = documents.lengths
        return _varlen(query, key, value, (documents.offsets,) * 2, (max(lengths),) * 2, reach)
    key, value = (x.index_select(0, documents.keys) for x in (key, value))
    if plain:
        return cut_attention(query, key, value, documents.query_lengths, documents.key_lengths, *settings)
    longest = max(documents.query_lengths), max(documents.key_lengths)
    return _varlen(query, key, value, (documents.query_offsets, documents.key_offsets), longest, reach)


def _varlen(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: tuple[torch.Tensor, torch.Tensor],
    longest: tuple[int, int],
    reach: Reach,
) -> torch.Tensor:
    """torch's kernel; the last query of a document sees its last key."""
    call = VarlenCall(*offsets, *longest, reach.scale, -1 if reach.window is None else reach.window - 1)
    if reach.sinks is not None:
        sunk: torch.Tensor = _VarlenWithSinks.apply(query, key, value, reach.sinks, call)
        return sunk
    output: torch.Tensor = varlen_attn(
        query,
        key,
        value,
        *offsets,
        *longest,
        scale=reach.scale,
        window_size=(call.window, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output


class _VarlenWithSinks(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor,
        call: VarlenCall,
    ) -> torch.Tensor:
        output, log_sums = with_sinks(*varlen_forward(query, key, value, call), sinks)
        ctx.save_for_backward(query, key, value, output, log_sums, sinks)
        ctx.call = call
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        query, key, value, output, log_sums, sinks = ctx.saved_tensors
        slopes = varlen_backward(grad.contiguous(), query, key, value, output, log_sums, ctx.call)
        return *slopes, sink_slopes(grad, output, log_sums, sinks), None
