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
    outputs = []
    # split, not slices: the gradient of a slice is as large as the whole batch
    for parts in zip(*(x.split(list(lengths)) for x in (query, key, value)), strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in parts)
        grouped = q.shape[1] != k.shape[1]
        document = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        outputs.append(document[0].transpose(0, 1))
    return torch.cat(outputs)


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
