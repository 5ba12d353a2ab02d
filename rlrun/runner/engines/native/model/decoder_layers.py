"""The layers of the decoder, which every forward pass of the native engine runs.

    hidden ─▶ norm ─▶ attention, or recurrence ─▶ + ─▶ norm ─▶ feed-forward, or experts ─▶ +

What differs between model families is in `EngineParts`. How queries attend to keys, and where recurrent
states come from, depends on the pass, which hands both over as functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch

from rlrun.runner.engines.native.model.cache import KVCache
from rlrun.runner.engines.native.model.device_copies import to_device
from rlrun.runner.engines.native.model.engine_parts import EngineParts
from rlrun.runner.engines.native.model.experts import route, routed_output
from rlrun.runner.engines.native.model.image_tower import ShownImages
from rlrun.runner.engines.native.model.layer_weights import (
    ExpertWeights,
    LayerWeights,
    ModelWeights,
    Tensors,
)
from rlrun.runner.engines.native.model.recurrent import Recur
from rlrun.runner.engines.native.model.torch_ops import Rotation, Scores


class Attend(Protocol):
    """How the queries of a pass attend to keys."""

    def __call__(self, index: int, qkv: torch.Tensor, *scores: Scores) -> torch.Tensor:
        """Returns `[T, heads · D]`.

        `index`: the number of a layer among those with attention. `qkv`: its rotated queries, keys and
        values, which are in the cache, too. `scores`: only given where they differ from a Llama's.
        """


class Operations(Protocol):
    """The operations that `torch_ops`, `flash_ops` and `native_ops` all have."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor: ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor: ...

    def rope_store(
        self,
        qkv: torch.Tensor,
        norms: tuple[torch.Tensor | None, torch.Tensor | None],
        eps: float,
        rotation: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """The tokens of a pass, and what is particular to it."""

    inputs: torch.Tensor
    """`[3, T]`: tokens, positions, cache slots."""
    attend: Attend
    recur: Recur | None
    """None for models without recurrent layers."""
    chosen: list[torch.Tensor] | None = None
    """Gets the experts `[T, K]` of each sparse layer."""
    images: ShownImages | None = None
    """The images of the tokens; None without images."""


class OtherLayers(Protocol):
    """Layers that are not rlrun's own and hold their parameters themselves: those of transformers."""

    def load(self, named: Tensors) -> None: ...

    def release(self) -> None: ...

    def run(self, weights: ModelWeights, cache: KVCache, forward: ForwardPass) -> torch.Tensor: ...

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


class DecoderLayers:
    """Runs the layers of a model; weights and cache are handed over with each pass."""

    def __init__(
        self, parts: EngineParts, ops: Operations, tables: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        """`tables`: RoPE's cosines and sines by position."""
        self._parts, self._model = parts, parts.model
        self._ops = ops
        self._cos, self._sin = tables

    def run(self, weights: ModelWeights, cache: KVCache, forward: ForwardPass) -> torch.Tensor:
        """Returns the hidden states `[T, H]` after the last layer, before the norm."""
        tokens, positions, slots = forward.inputs
        rotation, images = self._rotation(positions, forward.images), forward.images
        x = weights.embedding[tokens]
        if images is not None:
            x[images.tokens] = images.embeddings[0]
        attention_layers, recurrent_layers = count(), count()
        for number, (layer, experts, own) in enumerate(weights.by_layer()):
            projected = self._ops.linear(self.norm(x, layer.input_norm), layer.qkv, layer.qkv_bias)
            if forward.recur is not None and self._parts.is_recurrent(number):
                mixed = forward.recur(next(recurrent_layers), projected, own)
            else:
                index = next(attention_layers)
                targets = cache.keys[index], cache.values[index], slots
                attend = partial(self._attend, layer, rotation, targets, partial(forward.attend, index))
                mixed = self._parts.attention(projected, own, attend)
            x = x + self._ops.linear(mixed, layer.output, layer.output_bias)
            normed = self.norm(x, layer.mlp_norm)
            x = x + self._feed_forward(normed, layer, experts, own, forward.chosen)
            if images is not None and number + 1 < len(images.embeddings):
                x[images.tokens] += images.embeddings[number + 1]
        return x

    def _rotation(self, positions: torch.Tensor, images: ShownImages | None) -> Rotation:
        """Returns RoPE's cosines and sines, and their row for each token.

        With images every token has a row of its own: each pair of dimensions turns by the token's position in
        time, height or width.
        """
        if images is None:
            return self._cos, self._sin, positions
        axes = np.array(self._model.rope.axes)
        [rows] = to_device([np.ascontiguousarray(images.positions[axes].T)], positions.device)
        cosines, sines = (table.gather(0, rows) for table in (self._cos, self._sin))
        return cosines, sines, torch.arange(len(positions), device=positions.device)

    def _attend(
        self,
        layer: LayerWeights,
        rotation: Rotation,
        cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        attend: Callable[..., torch.Tensor],
        qkv: torch.Tensor,
        *scores: Scores,
    ) -> torch.Tensor:
        """Normalises and rotates queries and keys in place, writes keys and values to the cache, and
        attends.
        """
        norms = self._scale(layer.q_norm), self._scale(layer.k_norm)
        self._ops.rope_store(qkv, norms, self._model.norm_eps, rotation, cache)
        return attend(qkv, *scores)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Returns the normed hidden states."""
        return self._ops.rms_norm(x, self._parts.norm_scale(weight), self._model.norm_eps)

    def _scale(self, weight: torch.Tensor | None) -> torch.Tensor | None:
        return None if weight is None else self._parts.norm_scale(weight)

    def _feed_forward(
        self,
        normed: torch.Tensor,
        layer: LayerWeights,
        experts: ExpertWeights | None,
        own: Any,
        chosen: list[torch.Tensor] | None,
    ) -> torch.Tensor:
        """Returns the output `[T, H]` of the dense feed-forward, or of the experts."""
        dense = None
        if layer.gate_up is not None and layer.down is not None:
            inner = self._ops.silu_mul(self._ops.linear(normed, layer.gate_up, layer.gate_up_bias))
            dense = self._ops.linear(inner, layer.down, layer.down_bias)
        if experts is None:
            assert dense is not None
            return dense
        assert self._model.experts is not None
        shares, numbers = route(normed, experts, self._model.experts)
        if chosen is not None:
            chosen.append(numbers)
        routed = routed_output(normed, shares, numbers, experts, self._ops.silu_mul)
        if dense is None:
            return routed
        return routed + self._parts.shared_experts(normed, dense, own)
