"""Causal attention within each document of a packed batch; the cost is the sum of the squares of their
lengths.
"""

from dataclasses import dataclass

import torch
from torch.nn.attention.varlen import varlen_attn

from rlrun.runner.trainer.cpu_ops.attention import packed_attention as document_attention


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


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, documents: Documents, scale: float
) -> torch.Tensor:
    """`[T, N, H]`: queries on `[T, K, H]` keys and values (K divides N), each document by itself.

    Half precision on CUDA runs torch's variable-length kernel; everything else a document at a time.
    """
    if query.dtype == torch.float32 or not query.is_cuda:
        return document_attention(query, key, value, documents.lengths, scale)
    longest = max(documents.lengths)
    output: torch.Tensor = varlen_attn(
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
    return output
