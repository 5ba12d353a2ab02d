"""Causal attention within each document of a packed batch, at the cost of the sum of their squared lengths.

float32, or on a CPU ─▶ ops (C++ kernels, or scaled_dot_product_attention per document)
half precision on CUDA ─▶ varlen (torch's variable-length flash attention)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.runner.trainer.model.routing import Routing
from rlrun.runner.trainer.model.varlen import Branches, Spans, offsets_of, varlen_attention
from rlrun.runner.trainer.ops.attention import cut_attention
from rlrun.runner.trainer.ops.attention import packed_attention as document_attention
from rlrun.runner.trainer.ops.library import on_gpu
from rlrun.runner.trainer.transfers import to_device


@dataclass(frozen=True, slots=True)
class Documents:
    """The boundaries of the documents in a packed batch of T tokens."""

    lengths: tuple[int, ...]
    """Lengths of the documents, in order; they sum to T."""
    offsets: torch.Tensor
    """`[documents + 1]` int32 on the batch's device: the start of each document, and T."""
    routing: Routing | None = None
    """Which experts the tokens go to; None: the routers decide."""
    branch_ends: torch.Tensor | None = None
    """`[T]` int32 on the batch's device: `Forest.ends`, where documents are trees of sequences that share
    prefixes. None: each document is one sequence."""
    branches: Branches | None = None
    """The same for the kernel of GPUs."""
    chosen_keys: dict[int, torch.Tensor] = field(default_factory=dict)
    """The keys that indexers chose in this pass for later layers, too, by layer; layers fill it in."""

    @classmethod
    def of(
        cls, lengths: list[int], device: torch.device, ends: NDArray[np.int32] | None = None
    ) -> "Documents":
        """Returns documents of the given lengths, packed in this order. `ends`: they are trees."""
        offsets = to_device(offsets_of(lengths), device)
        if ends is None:
            return cls(tuple(lengths), offsets)
        branches = Branches.of(ends, device) if device.type == "cuda" else None
        return cls(tuple(lengths), offsets, branch_ends=to_device(ends, device), branches=branches)

    @property
    def longest(self) -> int:
        """The largest number of keys of a document."""
        return max(self.lengths)


@dataclass(frozen=True, slots=True)
class CutDocuments:
    """Packed documents under context parallelism: this rank's queries, and all keys that they can see.

    A document has q queries on this rank, and k keys up to the last of them; query i attends to the first
    k - q + i + 1 of these keys.
    """

    keys: torch.Tensor
    """`[K]` int64: indices of those keys among the keys of all ranks, in the order in which they are
    gathered."""
    query_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    query_offsets: torch.Tensor
    """As `Documents.offsets`, for this rank's queries; `key_offsets` is the same for `keys`."""
    key_offsets: torch.Tensor
    whole: Documents
    """The documents of all ranks together, for layers that gather the tokens of all ranks."""
    arrival: tuple[int, ...]
    """For each of the equal pieces that the pack is cut into, in the order of the pack: its place among the
    pieces that are gathered from the ranks, one rank after the other."""
    rank: int
    ranks: int
    routing: Routing | None = None
    """As in `Documents`, for this rank's tokens."""
    chosen_keys: dict[int, torch.Tensor] = field(default_factory=dict)
    """As in `Documents`, for this rank's queries."""

    @property
    def longest(self) -> int:
        """The largest number of keys that a document's queries on this rank can see."""
        return max(self.key_lengths)

    def in_pack_order(self, gathered: torch.Tensor) -> torch.Tensor:
        """Returns `[1, T, ...]` in the pack's order; `gathered` has one rank's tokens after another's."""
        return _rearranged(gathered, self.arrival)

    def own_share(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the rank's share of a weight whose first dimension is divided among the ranks."""
        return weight.chunk(self.ranks)[self.rank]

    def in_rank_order(self, tokens: torch.Tensor) -> torch.Tensor:
        """Reverses `in_pack_order`."""
        return _rearranged(tokens, sorted(range(len(self.arrival)), key=self.arrival.__getitem__))


def _rearranged(tokens: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Returns `[1, T, ...]` with its equal pieces in another order.

    Whole pieces are copied, in both passes: the gradient of an index would be added up token by token.
    """
    pieces = tokens.chunk(len(order), dim=1)
    return torch.cat([pieces[place] for place in order], dim=1)


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """A layer's scale, window and sinks."""

    scale: float
    """Multiplies the products of queries and keys."""
    window: int | None = None
    """How many keys a query sees, its own included; None: all up to its own."""
    sinks: torch.Tensor | None = None
    """`[N]` logit of each head's attention sink (`ops.sinks`)."""
    splits: int | None = None
    """In how many parts the kernel of GPUs sums over the keys; None: it decides by the batch."""


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents | CutDocuments,
    settings: AttentionSettings,
) -> torch.Tensor:
    """Returns `[T, N, H]`: attention of queries to `[T, K, H]` keys and values (K divides N), per document.

    With `CutDocuments`, keys and values are those of all context-parallel ranks. Values that are narrower
    than keys are padded with zeros, because the kernels accept only one width.
    """
    width = value.shape[-1]
    value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
    return _attention(query, key, value, documents, settings)[..., :width]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents | CutDocuments,
    settings: AttentionSettings,
) -> torch.Tensor:
    by_document = query.dtype == torch.float32 or not on_gpu(query)
    arguments = settings.scale, settings.window, settings.sinks
    if isinstance(documents, Documents):
        if by_document:
            return document_attention(query, key, value, documents.lengths, *arguments, documents.branch_ends)
        if documents.branches is not None:
            call = documents.branches.segments.call(settings.scale)
            levels = documents.branches.levels
            return varlen_attention(query, key, value, call, settings.sinks, levels)
        lengths = documents.lengths
        spans = Spans(documents.offsets, documents.offsets, max(lengths), max(lengths))
        call = spans.call(settings.scale, settings.window, splits=settings.splits)
        return varlen_attention(query, key, value, call, settings.sinks)
    key, value = (x.index_select(0, documents.keys) for x in (key, value))
    if by_document:
        return cut_attention(query, key, value, documents.query_lengths, documents.key_lengths, *arguments)
    longest = max(documents.query_lengths), max(documents.key_lengths)
    spans = Spans(documents.query_offsets, documents.key_offsets, *longest)
    call = spans.call(settings.scale, settings.window)
    return varlen_attention(query, key, value, call, settings.sinks)
