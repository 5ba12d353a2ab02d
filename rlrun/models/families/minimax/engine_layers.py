"""MiniMax-M2's attention in the native engine, whose norms of queries and keys are each over all heads."""

from collections.abc import Callable

import torch

from rlrun.runner.engines.native.model import torch_ops
from rlrun.runner.engines.native.model.engine_parts import EngineParts
from rlrun.runner.engines.native.model.layer_tensors import LayerTensors
from rlrun.runner.engines.native.model.layer_weights import AttentionWeights

JointNorms = tuple[torch.Tensor, torch.Tensor]
"""The weights of the norms of queries `[A]` and keys `[K]`."""


class Parts(EngineParts):
    """The parts of MiniMax-M2's decoder."""

    def attention_weights(self, tensors: LayerTensors, layer: int) -> AttentionWeights:
        """Returns the weights of a layer's attention without norms, which would be of each head."""
        return super().attention_weights(tensors, layer)._replace(q_norm=None, k_norm=None)

    def own_weights(self, tensors: LayerTensors, layer: int) -> JointNorms:
        """Returns the norms over all heads."""
        return tensors("self_attn.q_norm.weight"), tensors("self_attn.k_norm.weight")

    def attention(
        self, projected: torch.Tensor, own: JointNorms, attend: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Normalises the queries of all heads together, and the keys, before they attend."""
        model = self.model
        qkv = projected.view(len(projected), -1, model.head_dim)
        queries, keys, _ = qkv.split((model.heads, model.kv_heads, model.kv_heads), 1)
        for part, weight in zip((queries, keys), own, strict=True):
            normed = torch_ops.rms_norm(part.flatten(1), weight, model.norm_eps)
            part.copy_(normed.view_as(part))
        return attend(qkv)
