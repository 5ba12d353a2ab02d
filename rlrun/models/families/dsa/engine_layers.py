"""DeepSeek sparse attention in the native engine: latent attention to the keys that an indexer chooses.

projected ─▶ as in `families/deepseek` ─▶ queries, keys, values of every head ─┐
          ─▶ index key, head weights ─┐                                        ├─▶ attention
latent queries ─▶ index queries ──────┴─▶ `KeyChoice`, and a further head each ┘
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import layer_norm, pad

from rlrun.models.architecture import Architecture
from rlrun.models.families.deepseek import engine_layers as deepseek
from rlrun.models.families.deepseek.family import LATENT_NORM_EPS
from rlrun.models.families.dsa.family import KEY_NORM_EPS
from rlrun.runner.engines.native.model import torch_ops
from rlrun.runner.engines.native.model.key_choice import KeyChoice, SharedChoice
from rlrun.runner.engines.native.model.layer_tensors import LayerTensors
from rlrun.runner.engines.native.model.layer_weights import AttentionWeights
from rlrun.runner.engines.native.model.torch_ops import Scores


@dataclass(frozen=True, slots=True)
class SparseWeights:
    """The weights of a layer behind its first projections."""

    latent: deepseek.LatentWeights
    index_query: torch.Tensor | None
    """`[index heads · D, Q]`; None, like the two others, where the layer has no indexer."""
    key_norm: torch.Tensor | None
    key_norm_bias: torch.Tensor | None


class Parts(deepseek.Parts):
    """The parts of a decoder with latent attention and indexers."""

    def __init__(self, model: Architecture) -> None:
        super().__init__(model)
        assert model.indexer is not None
        if model.indexer.head_dim > model.head_dim:
            raise ValueError(
                f"index_head_dim = {model.indexer.head_dim} is larger than the {model.head_dim} dimensions "
                'of a head, beside which the native engine caches index keys: use engine.type = "sglang"'
            )
        self._indexer = model.indexer
        self._choice: KeyChoice | None = None
        """The last one of the pass at hand, whose layers run one after the other."""

    def attention_weights(self, tensors: LayerTensors, layer: int) -> AttentionWeights:
        """Returns the weights of attention; index keys and head weights are the last rows of the first."""
        weights = super().attention_weights(tensors, layer)
        if layer not in self._indexer.layers:
            return weights
        further = (tensors(f"self_attn.indexer.{name}.weight") for name in ("wk", "weights_proj"))
        return weights._replace(qkv=torch.cat((weights.qkv, *further)))

    def own_weights(self, tensors: LayerTensors, layer: int) -> SparseWeights:  # type: ignore[override]
        """Returns the weights behind the first projections."""
        latent = super().own_weights(tensors, layer)
        if layer not in self._indexer.layers:
            return SparseWeights(latent, None, None, None)
        names = ("wq_b.weight", "k_norm.weight", "k_norm.bias")
        return SparseWeights(latent, *(tensors(f"self_attn.indexer.{name}") for name in names))

    def attention(  # type: ignore[override]
        self, projected: torch.Tensor, own: SparseWeights, attend: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Returns the output `[T, heads · V]`; `projected` ends with index keys and head weights."""
        index_queries, index_key, choice = projected[:, :0, None], projected[:, :0], None
        if own.index_query is not None:
            sizes = self._indexer.head_dim, self._indexer.heads
            projected, index_key, weights = projected.split((projected.shape[1] - sum(sizes), *sizes), 1)
            index_queries, index_key = self._index(projected, index_key, own)
            self._choice = choice = KeyChoice(
                self._indexer.top_k,
                self._indexer.head_dim**-0.5,
                weights.float() * self._indexer.heads**-0.5,
            )
        assert self._choice is not None, "the first layer has an indexer"
        heads, dim = self.model.heads, self.model.head_dim
        qkv = deepseek.expanded(projected, own.latent, self.model, self._latent)
        query, key, value = qkv.split(heads, 1)
        index_queries, index_key = (
            pad(part, (0, dim - part.shape[2])) for part in (index_queries, index_key[:, None])
        )
        whole = torch.cat((query, index_queries, key, index_key, value, torch.zeros_like(index_key)), 1)
        attended = attend(whole, Scores(choice=choice or SharedChoice(self._choice)))
        return attended.unflatten(1, (heads, -1))[..., : self._latent.value_dim].flatten(1)

    def _index(
        self, projected: torch.Tensor, key: torch.Tensor, own: SparseWeights
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns index queries `[T, index heads, D]` and keys `[T, D]`, not yet rotated."""
        assert own.index_query is not None and own.latent.query_norm is not None
        latent = projected[:, : self._latent.query_rank]
        normed = torch_ops.rms_norm(latent, own.latent.query_norm, LATENT_NORM_EPS)
        queries = torch_ops.linear(normed, own.index_query).unflatten(1, (self._indexer.heads, -1))
        key = layer_norm(key, key.shape[1:], own.key_norm, own.key_norm_bias, KEY_NORM_EPS)
        return self._paired(queries), self._paired(key)

    def _paired(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the rotated dimensions, which are the first, in the pairs that RoPE's tables rotate."""
        if not self._indexer.interleaved:
            return x
        size = self._latent.rotated_dim
        return torch.cat((x[..., 0:size:2], x[..., 1:size:2], x[..., size:]), -1)
