"""The weights of a model as the engine multiplies by them: the matrices of one layer, and of all layers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest

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
    """`[A + 2K, H]`; with latent attention, the projections of the hidden state to latent vectors."""
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


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """The weights of Gated DeltaNet beside its projections, which are `qkv` and `output` of `LayerWeights`.

    `qkv` `[C + V + 2N, H]` has the rows of queries, keys and values, of the gate, of beta and of the decay,
    each for all heads. Qwen3-Next stores them head by head, so that its matrix is a copy.
    """

    taps: torch.Tensor
    """`[C, taps]`"""
    a_log: torch.Tensor
    """`[N]`"""
    dt_bias: torch.Tensor
    norm: torch.Tensor
    """`[V]` of each head's output."""


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """The weights of latent attention beside the first projections, which are `qkv` of `LayerWeights`."""

    query_norm: torch.Tensor | None
    """`[Q]`; None where queries are projected from the hidden state."""
    query: torch.Tensor | None
    """`[heads · D, Q]`"""
    kv_norm: torch.Tensor
    """`[R]`"""
    kv: torch.Tensor
    """`[heads · (N + V), R]`: each head's keys without rotation, then its values."""


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
    shared_gate: torch.Tensor | None
    """`[1, H]`, whose product is the gate of the shared expert's output; None for most families."""


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
    deltas: tuple[DeltaWeights | None, ...] = ()
    """One for each layer: None for attention. Empty: every layer has attention."""
    experts: tuple[ExpertWeights | None, ...] = ()
    """One for each layer: None for a dense feed-forward. Empty: every layer has one."""

    latents: tuple[LatentWeights, ...] = ()
    """One for each layer; empty without latent attention."""

    def by_layer(self) -> Iterator[tuple[LayerWeights, DeltaWeights | None, ExpertWeights | None]]:
        """Yields the weights of each layer."""
        return zip_longest(self.layers, self.deltas, self.experts)


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
