"""Causal attention within each document of a packed batch; the cost is the sum of the squares of their
lengths.
"""

from dataclasses import dataclass

import torch
from torch.nn.attention.varlen import varlen_attn

from rlrun.runner.trainer.cpu_ops.attention import cut_attention
from rlrun.runner.trainer.cpu_ops.attention import packed_attention as document_attention
from rlrun.runner.trainer.cpu_ops.library import on_gpu


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


def offsets_of(lengths: list[int]) -> torch.Tensor:
    """`[N + 1]` int32: where pieces of these lengths start, and where the last one ends."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents | CutDocuments,
    scale: float,
) -> torch.Tensor:
    """`[T, N, H]`: queries on `[T, K, H]` keys and values (K divides N), each document by itself.

    Half precision on CUDA runs torch's variable-length kernel; everything else a document at a time. With
    `CutDocuments`, keys and values are those of all context-parallel ranks. Values narrower than keys are
    filled up with zeros, as kernels take one width.
    """
    width = value.shape[-1]
    value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
    return _attention(query, key, value, documents, scale)[..., :width]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents | CutDocuments,
    scale: float,
) -> torch.Tensor:
    plain = query.dtype == torch.float32 or not on_gpu(query)
    if isinstance(documents, Documents):
        if plain:
            return document_attention(query, key, value, documents.lengths, scale)
        lengths = documents.lengths
        return _varlen(query, key, value, (documents.offsets,) * 2, (max(lengths),) * 2, scale)
    key, value = (x.index_select(0, documents.keys) for x in (key, value))
    if plain:
        return cut_attention(query, key, value, documents.query_lengths, documents.key_lengths, scale)
    longest = max(documents.query_lengths), max(documents.key_lengths)
    return _varlen(query, key, value, (documents.query_offsets, documents.key_offsets), longest, scale)


def _varlen(  # noqa: PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: tuple[torch.Tensor, torch.Tensor],
    longest: tuple[int, int],
    scale: float,
) -> torch.Tensor:
    """torch's kernel; the last query of a document sees its last key."""
    output: torch.Tensor = varlen_attn(
        query,
        key,
        value,
        *offsets,
        *longest,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output
