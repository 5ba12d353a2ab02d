"""DeepSeek sparse attention: the layers of DeepSeek-V3.2 and GLM-5.

    hidden ─▶ latent queries ──▶ index queries ┐
           ─────────────────▶ index key, norm ─┴─▶ scores ─top-k─▶ keys of each query ─▶ `KeyChoices`
                                                                                            │
    queries, keys, values as in latent attention ───────────────────────────────────────────┴─▶ attention

A layer without an indexer reads the choice of an earlier layer. The choice has no gradient, so that indexers
run without autograd, and their weights stay as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import layer_norm

from rlrun.models.architecture import Indexer as IndexerShape
from rlrun.models.families.deepseek import trainer_layers as deepseek
from rlrun.models.families.dsa.family import KEY_NORM_EPS
from rlrun.runner.trainer.compat.modules import LatentAttention, Module
from rlrun.runner.trainer.model.attention import (
    AttentionSettings,
    CutDocuments,
    Documents,
    packed_attention,
)
from rlrun.runner.trainer.model.decoder_parts import FROM_CHECKPOINT, matrix
from rlrun.runner.trainer.model.layers import Matrix, RouterLinear, local
from rlrun.runner.trainer.model.rope import PartialInterleavedRoPE, PartialRoPE
from rlrun.runner.trainer.ops.sparse_attention import choose_keys, sparse_attention


class Parts(deepseek.Parts):
    """The parts of a decoder with latent attention and indexers."""

    def attention(self, layer: int) -> Any:
        """Returns the config of sparse attention; an MTP layer has that of the last layer."""
        shape = self.model.indexer
        assert shape is not None
        return SparseLatentAttention.Config(
            **self.latent_vectors(),
            inner_attention=ChosenKeysAttention.Config(),
            indexer=self._indexer(shape) if layer in shape.layers else None,
            layer=layer,
            source=shape.source(layer),
            is_shared=shape.is_shared(layer, self.model.layers),
            top_k=shape.top_k,
        )

    def _indexer(self, shape: IndexerShape) -> "Indexer.Config":
        model, latent = self.model, self.model.latent
        assert latent is not None and latent.query_rank is not None
        rope_class = PartialInterleavedRoPE if shape.interleaved else PartialRoPE
        return Indexer.Config(
            shape=shape,
            query=matrix(latent.query_rank, shape.heads * shape.head_dim),
            key=matrix(model.hidden, shape.head_dim),
            key_norm=KeyNorm.Config(size=shape.head_dim, param_init=FROM_CHECKPOINT),
            head_weights=RouterLinear.Config(
                in_features=model.hidden, out_features=shape.heads, param_init=FROM_CHECKPOINT
            ),
            rope=rope_class.Config(
                dim=latent.rotated_dim, max_seq_len=model.max_positions, scaling="none", rope_factor=1.0
            ),
            choice=KeyChoice.Config(top_k=shape.top_k),
        )


class KeyNorm(Module):
    """The norm of index keys: subtracts the mean, and has a bias."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        size: int

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.size))
        self.bias = nn.Parameter(torch.empty(config.size))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the normalised `[..., size]`."""
        return layer_norm(input, input.shape[-1:], local(self.weight), local(self.bias), KEY_NORM_EPS)


class KeyChoice(Module):
    """Chooses the keys with the highest scores, within documents."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        top_k: int

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._top_k = config.top_k

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        weights: torch.Tensor,
        documents: Documents | CutDocuments,
    ) -> torch.Tensor:
        """Returns `[T, W]` chosen keys (`ops.sparse_attention`) of `[1, T, N, D]` queries; `key` `[1, K, D]`
        has the keys of all context-parallel ranks, and `weights` is `[1, T, N]`.
        """
        spans = _spans(documents)
        chosen: torch.Tensor = choose_keys(
            query.squeeze(0),
            spans.visible(key.squeeze(0)),
            weights.squeeze(0),
            spans.queries,
            spans.keys,
            self._top_k,
            spans.ends,
        )
        return chosen


class Indexer(Module):
    """The lightning indexer of a layer."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        shape: IndexerShape
        query: Matrix.Config
        key: Matrix.Config
        key_norm: KeyNorm.Config
        head_weights: RouterLinear.Config
        rope: PartialRoPE.Config
        choice: KeyChoice.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._heads = config.shape.heads
        self.query = config.query.build()
        self.key = config.key.build()
        self.key_norm = config.key_norm.build()
        self.head_weights = config.head_weights.build()
        self.rope = config.rope.build()
        self.choice = config.choice.build()

    @torch.no_grad()
    def forward(
        self,
        hidden: torch.Tensor,
        latent: torch.Tensor,
        documents: Documents | CutDocuments,
        positions: torch.Tensor | None,
    ) -> torch.Tensor:
        """Returns the chosen keys `[T, W]` of `[1, T, ...]` hidden states and latent queries."""
        query = self.query(latent).unflatten(2, (self._heads, -1))
        key = self.key_norm(self.key(hidden)).unsqueeze(2)
        query, key = self.rope(query, key, positions)
        weights = self.head_weights(hidden) * self._heads**-0.5
        chosen: torch.Tensor = self.choice(query, key.squeeze(2), weights, documents)
        return chosen


class ChosenKeysAttention(Module):
    """Attention to chosen keys; where no document has keys to leave out, as `PackedAttention`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: Documents | CutDocuments,
        scale: float,
        chosen: torch.Tensor | None,
    ) -> torch.Tensor:
        """Returns `[1, T, N, V]`; `chosen` None: queries see all keys up to their own."""
        query, key, value = (tensor.squeeze(0) for tensor in (q_BLNH, k_BLNH, v_BLNH))
        if chosen is None:
            settings = AttentionSettings(scale)
            return packed_attention(query, key, value, attention_masks, settings).unsqueeze(0)
        spans = _spans(attention_masks)
        key, value = (spans.visible(tensor) for tensor in (key, value))
        output: torch.Tensor = sparse_attention(
            query, key, value, chosen, spans.queries, spans.keys, scale, spans.ends
        )
        return output.unsqueeze(0)


class SparseLatentAttention(LatentAttention):
    """Latent attention to the keys that this layer's indexer chooses, or that of an earlier layer."""

    @dataclass(kw_only=True, slots=True)
    class Config(LatentAttention.Config):
        indexer: Indexer.Config | None
        layer: int
        source: int
        """The layer whose indexer chooses the keys."""
        is_shared: bool
        """Whether later layers take this layer's choice."""
        top_k: int

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.indexer = None if config.indexer is None else config.indexer.build()
        self._layer, self._source, self._is_shared = config.layer, config.source, config.is_shared
        self._top_k = config.top_k

    def forward(
        self,
        x: torch.Tensor,
        attention_masks: Documents | CutDocuments,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps `[1, T, hidden]` to `[1, T, hidden]`."""
        latent = self.q_norm(self.wq_a(x))
        query = self.wq_b(latent).unflatten(2, (-1, self.qk_head_dim))
        sizes = self.qk_nope_head_dim, self.qk_rope_head_dim
        unrotated_query, rotated_query = query.split(sizes, -1)
        vector, rotated_key = self.wkv_a(x).split((self.kv_lora_rank, self.qk_rope_head_dim), -1)
        rotated_query, rotated_key = self.rope(rotated_query, rotated_key.unsqueeze(2), positions)
        key, value = (
            self.wkv_b(self.kv_norm(vector))
            .unflatten(2, (-1, self.qk_nope_head_dim + self.v_head_dim))
            .split((self.qk_nope_head_dim, self.v_head_dim), -1)
        )
        output = self.inner_attention(
            torch.cat((unrotated_query, rotated_query), -1),
            torch.cat((key, rotated_key.expand(-1, -1, key.shape[2], -1)), -1),
            value,
            attention_masks=attention_masks,
            scale=self.softmax_scale,
            chosen=self._chosen(x, latent, attention_masks, positions),
        )
        projected: torch.Tensor = self.wo(output.flatten(2))
        return projected

    def _chosen(
        self,
        hidden: torch.Tensor,
        latent: torch.Tensor,
        documents: Documents | CutDocuments,
        positions: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Returns the keys that the layer's queries see; None if no document has more than they may see.

        A shared choice stays with the documents of the micro-batch, so that the later layer finds it when the
        layer is recomputed, too: the backward pass runs it before the layer with the indexer.
        """
        if documents.longest <= self._top_k:
            return None
        if self.indexer is None:
            return documents.chosen_keys[self._source]
        chosen: torch.Tensor = self.indexer(hidden, latent, documents, positions)
        if self._is_shared:
            documents.chosen_keys[self._layer] = chosen
        return chosen


class _Spans(NamedTuple):
    """The documents of this rank's queries."""

    queries: tuple[int, ...]
    """Number of queries of each document."""
    keys: tuple[int, ...]
    """Number of keys of each document, up to that of its last query here."""
    gathered: torch.Tensor | None
    """`[K]`: those keys among the keys of all context-parallel ranks; None: all of them."""
    ends: torch.Tensor | None
    """`Documents.branch_ends`."""

    def visible(self, keys: torch.Tensor) -> torch.Tensor:
        """Returns the keys of the documents, of those that were gathered."""
        return keys if self.gathered is None else keys.index_select(0, self.gathered)


def _spans(documents: Documents | CutDocuments) -> _Spans:
    if isinstance(documents, Documents):
        return _Spans(documents.lengths, documents.lengths, None, documents.branch_ends)
    return _Spans(documents.query_lengths, documents.key_lengths, documents.keys, None)
