"""Latent attention in the native engine (DeepSeek-V3, Kimi-K2, GLM-4.7-Flash).

    projected ─▶ latent queries ─norm, up─▶ queries ┐
              ─▶ latent keys and values ─norm, up─▶ ├─▶ as if every head had its own keys and values
              ─▶ the rotated part of all keys ──────┘

The cache holds the keys and values of every head, so that all passes attend as in other models. Rotated
dimensions come first in queries and keys, where RoPE's tables rotate them; scores do not depend on the order.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from rlrun.models.architecture import Architecture, LatentAttention
from rlrun.models.attention_config import yarn_scale
from rlrun.models.families.deepseek.family import LATENT_NORM_EPS
from rlrun.runner.engines.native.model import torch_ops
from rlrun.runner.engines.native.model.engine_parts import EngineParts
from rlrun.runner.engines.native.model.layer_tensors import LayerTensors


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """The weights of a layer's latent attention, except the first projections and the last one."""

    query_norm: torch.Tensor | None
    """`[Q]`; None where queries are projected from the hidden state."""
    query: torch.Tensor | None
    """`[heads · D, Q]`"""
    kv_norm: torch.Tensor
    """`[R]`"""
    kv: torch.Tensor
    """`[heads · (N + V), R]`: each head's keys without rotation, then its values."""


class Parts(EngineParts):
    """The parts of a decoder with latent attention."""

    def __init__(self, model: Architecture) -> None:
        super().__init__(model)
        assert model.latent is not None
        self._latent = model.latent

    def projections(self, tensors: LayerTensors) -> torch.Tensor:
        """Returns the projections of the hidden state to latent vectors."""
        queries = "q_proj" if self._latent.query_rank is None else "q_a_proj"
        return torch.cat([tensors(f"self_attn.{name}.weight") for name in (queries, "kv_a_proj_with_mqa")])

    def own_weights(self, tensors: LayerTensors, layer: int) -> LatentWeights:
        """Returns the weights behind the latent vectors."""
        has_latent_queries = self._latent.query_rank is not None
        return LatentWeights(
            query_norm=tensors("self_attn.q_a_layernorm.weight") if has_latent_queries else None,
            query=tensors("self_attn.q_b_proj.weight") if has_latent_queries else None,
            kv_norm=tensors("self_attn.kv_a_layernorm.weight"),
            kv=tensors("self_attn.kv_b_proj.weight"),
        )

    def attention(
        self, projected: torch.Tensor, own: LatentWeights, attend: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Returns the output `[T, heads · V]`; values have zeros up to the size of keys while they attend."""
        attended = attend(expanded(projected, own, self.model, self._latent))
        return attended.unflatten(1, (self.model.heads, -1))[..., : self._latent.value_dim].flatten(1)


def expanded(
    projected: torch.Tensor, weights: LatentWeights, model: Architecture, latent: LatentAttention
) -> torch.Tensor:
    """Returns queries, keys and values `[T, 3 · heads, D]`, not yet rotated; values end with zeros.

    `projected` `[T, Q + R + P]`: latent queries, or all queries where they are not latent; the latent vector
    of keys and values; the rotated dimensions of the keys.
    """
    heads = model.heads
    sizes = latent.kv_rank, latent.rotated_dim
    queries, vector, rotated = projected.split((projected.shape[1] - sum(sizes), *sizes), 1)
    if weights.query is not None and weights.query_norm is not None:
        normed = torch_ops.rms_norm(queries, weights.query_norm, LATENT_NORM_EPS)
        queries = torch_ops.linear(normed, weights.query, None)
    query = _rotated_first(queries.unflatten(1, (heads, -1)), latent, model) * _score_scale(latent, model)
    both = torch_ops.linear(torch_ops.rms_norm(vector, weights.kv_norm, LATENT_NORM_EPS), weights.kv, None)
    unrotated, value = both.unflatten(1, (heads, -1)).split((latent.unrotated_dim, latent.value_dim), 2)
    key = torch.cat((_paired(rotated, model)[:, None].expand(-1, heads, -1), unrotated), 2)
    return torch.cat((query, key, pad(value, (0, model.head_dim - latent.value_dim))), 1)


def _rotated_first(query: torch.Tensor, latent: LatentAttention, model: Architecture) -> torch.Tensor:
    unrotated, rotated = query.split((latent.unrotated_dim, latent.rotated_dim), 2)
    return torch.cat((_paired(rotated, model), unrotated), 2)


def _paired(rotated: torch.Tensor, model: Architecture) -> torch.Tensor:
    """Returns the rotated dimensions with the pairs (i, i + P/2) that RoPE's tables rotate."""
    if not model.rope.interleaved:
        return rotated
    return torch.cat((rotated[..., 0::2], rotated[..., 1::2]), -1)


def _score_scale(latent: LatentAttention, model: Architecture) -> float:
    """Returns what scores are multiplied by besides 1 / √D."""
    if model.rope.type != "yarn" or not latent.scale_factor:
        return 1.0
    return yarn_scale(model.rope.factor, latent.scale_factor) ** 2
