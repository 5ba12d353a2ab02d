"""Causal attention within each document of a packed batch; the cost is the sum of the squares of their
lengths.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from rlrun.runner.trainer.compat import flash_attention_cpu, flash_attention_cpu_backward


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the documents of a packed batch of T tokens lie."""

    lengths: tuple[int, ...]
    """In order; they sum to T."""
    offsets: torch.Tensor
    """`[documents + 1]` int32, on the batch's device: the start of each, and T."""

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> "Documents":
        """Documents of these lengths, one after the other."""
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        return cls(tuple(lengths), offsets.to(device))

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Neighbours of equal length: first token, number of documents, their length."""
        start = 0
        for length, members in groupby(self.lengths):
            count = sum(1 for _ in members)
            yield start, count, length
            start += count * length


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, documents: Documents, scale: float
) -> torch.Tensor:
    """`[T, N, H]`: queries on `[T, K, H]` keys and values (K divides N), each document by itself."""
    if query.device.type == "cpu":
        output: torch.Tensor = _CpuAttention.apply(query, key, value, documents, scale)
        return output
    if query.dtype == torch.float32:
        return _by_document(query, key, value, documents, scale)
    longest = max(documents.lengths)
    return varlen_attn(
        query,
        key,
        value,
        documents.offsets,
        documents.offsets,
        longest,
        longest,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _by_document(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, documents: Documents, scale: float
) -> torch.Tensor:
    """One call for each run of documents; CUDA's variable-length kernels lack float32."""
    sizes = [count * length for _, count, length in documents.runs()]
    shapes = [(count, length) for _, count, length in documents.runs()]
    outputs = []
    # split, not slices: the gradient of a slice is as large as the whole batch
    for parts, shape in zip(
        zip(*(x.split(sizes) for x in (query, key, value)), strict=True), shapes, strict=True
    ):
        q, k, v = (part.unflatten(0, shape).transpose(1, 2) for part in parts)
        grouped = q.shape[1] != k.shape[1]
        run = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        outputs.append(run.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


class _CpuAttention(torch.autograd.Function):
    """torch's CPU flash kernels over runs of documents, writing into whole tensors."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        query, key, value, documents, scale = inputs
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        sums = []
        for start, count, length in documents.runs():
            q, k, v, out = (_run(x, start, count, length) for x in (query, key, value, output))
            result, log_sum_exp = flash_attention_cpu(q, k, v, scale)
            out.copy_(result)
            sums.append(log_sum_exp)
        ctx.save_for_backward(query, key, value, output, *sums)
        ctx.documents, ctx.scale = documents, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, *sums = ctx.saved_tensors
        grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
        for (start, count, length), log_sum_exp in zip(ctx.documents.runs(), sums, strict=True):
            incoming = _run(grad, start, count, length)
            saved = tuple(_run(x, start, count, length) for x in (query, key, value, output))
            for whole, part in zip(
                grads, flash_attention_cpu_backward(incoming, (*saved, log_sum_exp), ctx.scale), strict=True
            ):
                _run(whole, start, count, length).copy_(part)
        return *grads, None, None


def _run(tensor: torch.Tensor, start: int, count: int, length: int) -> torch.Tensor:
    """`[T, N, H]` -> `[count, N, length, H]` view of some neighbouring documents."""
    return tensor[start : start + count * length].unflatten(0, (count, length)).transpose(1, 2)
