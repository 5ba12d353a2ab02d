"""Attention on GPUs in half precision, by torch's variable-length kernel: documents, windows, sinks, trees.

A tree of sequences that share prefixes takes several calls (`rlrun.runner.batches.prefixes`): one in which
every segment is a document, and one for each level, whose queries see all keys of a segment before them.
Their results are merged by their log-sum-exp. Given the merged output and log-sum-exp, the gradients of each
call are those of its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.varlen import varlen_attn

from rlrun.runner.batches.prefixes import Level, cut_branches
from rlrun.runner.trainer.compat.kernels import VarlenCall, varlen_backward, varlen_forward
from rlrun.runner.trainer.ops.attention import sink_gradients, with_sinks
from rlrun.runner.trainer.transfers import to_device


@dataclass(frozen=True, slots=True)
class Spans:
    """Queries and keys of several documents, in order."""

    query_offsets: torch.Tensor
    """`[documents + 1]` int32 on the device: the start of each document's queries, and the last one's end."""
    key_offsets: torch.Tensor
    longest_queries: int
    longest_keys: int

    @classmethod
    def of(cls, query_lengths: list[int], key_lengths: list[int], device: torch.device) -> "Spans":
        """Returns documents with so many queries and keys."""
        offsets = [to_device(offsets_of(lengths), device) for lengths in (query_lengths, key_lengths)]
        return cls(offsets[0], offsets[1], max(query_lengths), max(key_lengths))

    def call(
        self, scale: float, window: int | None = None, *, causal: bool = True, splits: int | None = None
    ) -> VarlenCall:
        """Returns the arguments of the kernel; `window`: how many keys a query sees, its own included."""
        return VarlenCall(
            self.query_offsets,
            self.key_offsets,
            self.longest_queries,
            self.longest_keys,
            scale,
            -1 if window is None else window - 1,
            causal,
            splits,
        )


@dataclass(frozen=True, slots=True)
class LevelSpans:
    """A `Level` on the device."""

    queries: torch.Tensor
    """`[Q]` int64."""
    keys: torch.Tensor
    """`[K]` int64."""
    spans: Spans

    @classmethod
    def of(cls, level: Level, device: torch.device) -> "LevelSpans":
        """Copies a level to the device."""
        spans = Spans.of(level.query_lengths, level.key_lengths, device)
        return cls(to_device(level.queries, device), to_device(level.keys, device), spans)


@dataclass(frozen=True, slots=True)
class Branches:
    """Trees as calls of the kernel."""

    segments: Spans
    levels: tuple[LevelSpans, ...]

    @classmethod
    def of(cls, ends: NDArray[np.int32], device: torch.device) -> "Branches":
        """Returns the calls for a pack with these `Forest.ends`."""
        lengths, levels = cut_branches(ends)
        on_device = tuple(LevelSpans.of(level, device) for level in levels)
        return cls(Spans.of(lengths, lengths, device), on_device)


def offsets_of(lengths: list[int]) -> NDArray[np.int32]:
    """Returns `[N + 1]` int32: the start of each of N adjacent pieces of these lengths, and the end of the
    last.
    """
    return np.cumsum([0, *lengths], dtype=np.int32)


def varlen_attention(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    call: VarlenCall,
    sinks: torch.Tensor | None = None,
    levels: Sequence[LevelSpans] = (),
) -> torch.Tensor:
    """Returns attention `[T, N, H]`; the kernel aligns a document's last query with its last key.

    `sinks`: the logit `[N]` of each head's sink. `levels`: those of trees whose segments are the documents.
    """
    if sinks is not None or levels:
        merged: torch.Tensor = _MergedCalls.apply(query, key, value, sinks, call, levels)
        return merged
    output: torch.Tensor = varlen_attn(
        query,
        key,
        value,
        call.query_offsets,
        call.key_offsets,
        call.longest_queries,
        call.longest_keys,
        scale=call.scale,
        window_size=(call.window, 0),
        enable_gqa=query.shape[1] != key.shape[1],
        num_splits=call.splits,
    )
    return output


class _MergedCalls(torch.autograd.Function):
    """Attention over documents, merged with that over the levels of trees, and with sinks."""

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
        call: VarlenCall,
        levels: Sequence[LevelSpans],
    ) -> torch.Tensor:
        output, log_sums = varlen_forward(query, key, value, call)
        total = output
        if levels:  # copies, because selective recomputation keeps what the kernel returned
            total, log_sums = output.to(log_sums.dtype, copy=True), log_sums.clone()
        for level in levels:
            queries, keys = level.queries, level.keys
            calls = level.spans.call(call.scale, causal=False)
            part, part_sums = varlen_forward(query[queries], key[keys], value[keys], calls)
            own_sums = log_sums[:, queries]
            sums = torch.logaddexp(own_sums, part_sums)
            total[queries] = total[queries] * _weight(own_sums, sums) + part * _weight(part_sums, sums)
            log_sums[:, queries] = sums
        output = total.to(query.dtype)
        if sinks is not None:
            output, log_sums = with_sinks(output, log_sums, sinks)
        ctx.save_for_backward(query, key, value, output, log_sums, sinks)
        ctx.calls = call, levels
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        query, key, value, output, log_sums, sinks = ctx.saved_tensors
        call, levels = ctx.calls
        grad = grad.contiguous()
        gradients = varlen_backward(grad, query, key, value, output, log_sums, call)
        for level in levels:
            queries, keys = level.queries, level.keys
            part = varlen_backward(
                grad[queries],
                query[queries],
                key[keys],
                value[keys],
                output[queries],
                log_sums[:, queries].contiguous(),
                level.spans.call(call.scale, causal=False),
            )
            for gradient, part_gradient, places in zip(gradients, part, (queries, keys, keys), strict=True):
                gradient.index_add_(0, places, part_gradient)
        return (
            *gradients,
            None if sinks is None else sink_gradients(grad, output, log_sums, sinks),
            None,
            None,
        )


def _weight(part: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Returns `[Q, N, 1]`: the share of a part in the sum over all keys, from log-sum-exps `[N, Q]`."""
    return (part - total).exp().t()[..., None]
