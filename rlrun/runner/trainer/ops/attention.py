"""Causal attention within the documents of a packed batch on a CPU, in Σ L² time and Σ L memory.

A document may be a tree of sequences that share prefixes (`rlrun.runner.batches.prefixes`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from rlrun.runner.kernels.operators import operators
from rlrun.runner.trainer.ops.library import serves, serves_in_order


def packed_attention(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Sequence[int],
    scale: float,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns attention of `[T, N, H]` queries to `[T, K, H]` keys and values (K divides N), per document.

    `lengths` of the documents sum to T; the last dimension must be contiguous. `window`: how many keys a
    query sees, its own included; None: all. `sinks`: the logit `[N]` of each head's sink. `ends`: `[T]` int32
    `Forest.ends`, for documents that are trees, which have no window.
    """
    if serves(query, key, value) and query.shape[-1] % 2 == 0:
        output: torch.Tensor = _PackedAttention.apply(
            query, key, value, sinks, list(lengths), ends, scale, window or 0
        )
        return output
    if ends is not None:
        assert window is None, "trees have no windows"
        return tree_attention(query, key, value, lengths, ends, scale, sinks)
    return cut_attention(query, key, value, lengths, lengths, scale, window, sinks)


def cut_attention(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    scale: float,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns attention of the last `query_lengths[i]` queries of each document to its `key_lengths[i]`
    keys.
    """
    outputs = []
    # split rather than slices: the gradient of a slice is as large as the whole batch
    pieces = query.split(list(query_lengths)), key.split(list(key_lengths)), value.split(list(key_lengths))
    for document in zip(*pieces, strict=True):
        q, k, v = (piece.transpose(0, 1)[None] for piece in document)
        queries, keys = q.shape[2], k.shape[2]
        mask = None
        if sinks is not None or queries != keys or (window is not None and window < keys):
            mask = _visible(queries, keys, window, q.device)
        if mask is not None and sinks is not None:
            mask = _bias(mask, sinks.to(q.dtype))
            k, v = (torch.nn.functional.pad(x, (0, 0, 1, 0)) for x in (k, v))
        attended = scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)


def tree_attention(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Sequence[int],
    ends: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Returns attention with a dense mask for each tree, in Σ L² memory."""
    outputs, start = [], 0
    pieces = (x.split(list(lengths)) for x in (query, key, value, ends))
    for *tree, tree_ends in zip(*pieces, strict=True):
        q, k, v = (piece.transpose(0, 1)[None] for piece in tree)
        mask = tree_mask(tree_ends - start)
        start += len(tree_ends)
        if sinks is not None:
            mask = _bias(mask, sinks.to(q.dtype))
            k, v = (torch.nn.functional.pad(x, (0, 0, 1, 0)) for x in (k, v))
        attended = scaled_dot_product_attention(
            q, k, v, mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)


def tree_mask(ends: torch.Tensor) -> torch.Tensor:
    """Returns `[T, T]`: which keys (columns) the queries of a tree attend to, given its `Forest.ends`."""
    index = torch.arange(len(ends), device=ends.device)
    return (index[:, None] >= index) & (index[:, None] < ends)


def _visible(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Returns `[queries, keys]`: which keys the last queries of a document attend to."""
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return mask if window is None else mask.triu(keys - queries - window + 1)


def _bias(visible: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Returns `[N, queries, 1 + keys]`, to be added to scores: a first key of zeros then scores as the head's
    sink.
    """
    shape = (len(sinks), *visible.shape)
    hidden = torch.zeros(shape, dtype=sinks.dtype, device=sinks.device).masked_fill(~visible, -torch.inf)
    return torch.cat((sinks[:, None, None].expand(*shape[:2], 1), hidden), dim=2)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
        lengths: list[int],
        ends: torch.Tensor | None,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        if not window and query.shape[-1] % 16 == 0 and serves_in_order(query):
            output, log_sums = operators.attention(query, key, value, lengths, ends, scale)
        else:
            output, log_sums = operators.block_attention(query, key, value, lengths, ends, scale, window)
        if sinks is not None:
            output, log_sums = with_sinks(output, log_sums, sinks)
        ctx.save_for_backward(query, key, value, output, log_sums, sinks, ends)
        ctx.settings = lengths, scale, window
        result: torch.Tensor = output
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        *saved, output, log_sums, sinks, ends = ctx.saved_tensors
        lengths, scale, window = ctx.settings
        gradients = operators.attention_backward(grad, *saved, output, log_sums, lengths, ends, scale, window)
        sink_grad = None if sinks is None else sink_gradients(grad, output, log_sums, sinks)
        return *gradients, sink_grad, None, None, None, None


def with_sinks(
    output: torch.Tensor, log_sums: torch.Tensor, sinks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output `[T, N, H]` and log-sum-exp `[N, T]` float32 with the sinks `[N]` included.

    A kernel without sinks returns the output and the log-sum-exp of the scores; both can be corrected for the
    sink afterwards. Given the corrected ones, its backward pass is right for queries, keys and values: the
    weights are exp(score - log-sum-exp), and the softmax's gradient needs only the output. Scaling the output
    with autograd instead would be wrong, because torch's kernels have no gradient for the log-sum-exp.
    """
    total_log_sums = torch.logaddexp(log_sums, sinks.float()[:, None])
    kept = (log_sums - total_log_sums).exp().t()[..., None]
    return (output * kept).to(output.dtype), total_log_sums


def sink_gradients(
    grad: torch.Tensor, output: torch.Tensor, log_sums: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """Returns the gradient of the sinks `[N]`; `output` and `log_sums` include the sinks."""
    dots = (grad.float() * output.float()).sum(-1)
    weights = (sinks.float()[:, None] - log_sums).exp().t()
    return -(weights * dots).sum(0).to(sinks.dtype)
