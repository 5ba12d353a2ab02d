"""The weights of a model as the engine multiplies by them: the matrices of one layer, and of all layers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer. H: hidden, A: heads x head_dim, K: kv heads x head_dim, F: feed-forward.

    The C++ function `decode` receives the fields in this order.
    """

    input_norm: torch.Tensor
    """`[H]`"""
    qkv: torch.Tensor
    """`[A + 2K, H]`; other rows where the family's layers are its own (`EngineParts`)."""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    """`[head_dim]`; None for Llama."""
    k_norm: torch.Tensor | None
    output: torch.Tensor
    """`[H, A]`"""
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    """`[H]`"""
    gate_up: torch.Tensor | None
    """`[2F, H]` of the dense feed-forward, which in sparse layers is that of the shared expert; None without
    one."""
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor | None
    """`[H, F]`"""
    down_bias: torch.Tensor | None


class AttentionWeights(NamedTuple):
    """The fields of `LayerWeights` with the weights of attention."""

    qkv: torch.Tensor
    output: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The routed experts of a layer. E: experts, F: inner width of one expert."""

    router: torch.Tensor
    """`[E, H]` float32: rounded logits would choose other experts."""
    correction: torch.Tensor | None
    """`[E]` float32, added to the scores when experts are chosen; None for most families."""
    gate_up: torch.Tensor
    """`[E, 2F, H]`"""
    down: torch.Tensor
    """`[E, H, F]`"""


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The weights of a whole model."""

    embedding: torch.Tensor
    """`[V, H]`"""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    """`[H]`"""
    head: torch.Tensor
    """`[V, H]`; the embedding if they are tied."""
    named: Tensors = field(default_factory=dict)
    """The checkpoint's tensors, which the matrices above are views of; empty where matrices are packed."""
    experts: tuple[ExpertWeights | None, ...] = ()
    """One for each layer: None for a dense feed-forward. Empty: every layer has one."""
    own: tuple[Any, ...] = ()
    """What `EngineParts.own_weights` returns for each layer. Empty: None for every layer."""

    def by_layer(self) -> Iterator[tuple[LayerWeights, ExpertWeights | None, Any]]:
        """Yields the weights of each layer."""
        return zip_longest(self.layers, self.experts, self.own)


def with_matrices(weights: ModelWeights, pack: Callable[[torch.Tensor], torch.Tensor]) -> ModelWeights:
    """Returns weights whose head and dense matrices are replaced by `pack` of them, without `named`."""

    def packed(matrix: torch.Tensor | None) -> torch.Tensor | None:
        return None if matrix is None else pack(matrix)

    layers = tuple(
        replace(
            layer,
            qkv=pack(layer.qkv),
            output=pack(layer.output),
            gate_up=packed(layer.gate_up),
            down=packed(layer.down),
        )
        for layer in weights.layers
    )
    return replace(weights, layers=layers, head=pack(weights.head), named={})


def without_elements(weights: ModelWeights) -> ModelWeights:
    """Returns tensors of the same dtypes and devices without elements, to free the memory of weights."""

    def emptied(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.new_empty(0)

    norm = weights.norm.new_empty(0)
    layers = tuple(
        LayerWeights(**{name.name: emptied(getattr(layer, name.name)) for name in fields(layer)})
        for layer in weights.layers
    )
    return ModelWeights(norm, layers, norm, norm)
