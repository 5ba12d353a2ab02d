"""Causal attention within the documents of a packed batch on a CPU: the cost is Σ L², the memory Σ L."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from rlrun.runner.trainer.cpu_ops.library import operators, serves, serves_attention


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Sequence[int], scale: float
) -> torch.Tensor:
    """`[T, N, H]` queries on `[T, K, H]` keys and values (K divides N), each document by itself: `[T, N, H]`.

    `lengths` are the documents' in their order, and sum to T; the last dimension must be contiguous.
    """
    if serves(query, key, value) and query.shape[-1] % 2 == 0 and serves_attention(query.dtype):
        output: torch.Tensor = _PackedAttention.apply(query, key, value, list(lengths), scale)
        return output
    return cut_attention(query, key, value, lengths, lengths, scale)


def cut_attention(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    scale: float,
) -> torch.Tensor:
    """The last `query_lengths[i]` queries of each document on its `key_lengths[i]` keys: `[T, N, H]`."""
    outputs = []
    # split, not slices: the gradient of a slice is as large as the whole batch
    pieces = query.split(list(query_lengths)), key.split(list(key_lengths)), value.split(list(key_lengths))
    for parts in zip(*pieces, strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in parts)
        queries, keys = q.shape[2], k.shape[2]
        mask = None if queries == keys else _later(queries, keys, q.device)
        document = scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(document[0].transpose(0, 1))
    return torch.cat(outputs)


def _later(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """`[queries, keys]`: which keys the last queries of a document attend to."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: list[int],
        scale: float,
    ) -> torch.Tensor:
        output, log_sums = operators.attention(query, key, value, lengths, scale)
        ctx.save_for_backward(query, key, value, output, log_sums)
        ctx.lengths, ctx.scale = lengths, scale
        result: torch.Tensor = output
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *operators.attention_backward(grad, *ctx.saved_tensors, ctx.lengths, ctx.scale), None, None
