"""Fuses a checkpoint's tensors: q, k, v into one matrix, gate and up into one, and experts into stacks."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from rlrun.models.architecture import Architecture
from rlrun.models.attention_shapes import DeltaNet, LatentAttention
from rlrun.runner.engines.native.model.layer_weights import (
    DeltaWeights,
    ExpertWeights,
    LatentWeights,
    LayerWeights,
    ModelWeights,
    Tensors,
    with_matrices,
)


def fuse(named: Tensors, model: Architecture) -> ModelWeights:
    """Fuses a checkpoint's tensors; those that are adjacent in memory become a view, all others are
    copied.
    """
    layers, deltas, experts = [], [], []
    by_layer = [_LayerTensors(named, f"{model.prefix}layers.{index}.") for index in range(model.layers)]
    for index, tensors in enumerate(by_layer):
        is_sparse = model.experts is not None and index in model.experts.layers
        layers.append(_layer_weights(tensors, model, index, is_sparse=is_sparse))
        deltas.append(_delta_weights(tensors) if model.is_delta(index) else None)
        experts.append(_expert_weights(tensors, model) if is_sparse else None)
    embedding = named[f"{model.prefix}embed_tokens.weight"]
    return ModelWeights(
        embedding=embedding,
        layers=tuple(layers),
        norm=named[f"{model.prefix}norm.weight"],
        head=embedding if model.tied else named["lm_head.weight"],
        named=named,
        deltas=tuple(deltas) if model.delta else (),
        experts=tuple(experts) if model.experts else (),
        latents=tuple(_latent_weights(layer) for layer in by_layer) if model.latent else (),
    )


def _layer_weights(
    tensors: "_LayerTensors", model: Architecture, index: int, *, is_sparse: bool
) -> LayerWeights:
    delta = model.delta if model.is_delta(index) else None
    has_norms = model.qk_norm and delta is None
    dense: str | None = "mlp"
    if is_sparse and model.experts is not None:
        shared = "mlp.shared_expert" if model.experts.shared_gate else "mlp.shared_experts"
        dense = shared if model.experts.shared else None
    mlp_bias = model.mlp_bias and not is_sparse
    if model.latent:
        projections = _latent_projections(tensors, model.latent)
    else:
        fused = _delta_projections(tensors, delta) if delta else None
        projections = tensors.fused("self_attn", "qkv", "weight") if fused is None else fused
    return LayerWeights(
        input_norm=tensors("input_layernorm.weight"),
        qkv=projections,
        qkv_bias=tensors.fused("self_attn", "qkv", "bias") if model.qkv_bias else None,
        q_norm=tensors("self_attn.q_norm.weight") if has_norms else None,
        k_norm=tensors("self_attn.k_norm.weight") if has_norms else None,
        output=tensors("linear_attn.out_proj.weight" if delta else "self_attn.o_proj.weight"),
        output_bias=tensors("self_attn.o_proj.bias") if model.output_bias else None,
        mlp_norm=tensors("post_attention_layernorm.weight"),
        gate_up=tensors.fused(dense, ("gate", "up"), "weight") if dense else None,
        gate_up_bias=tensors.fused("mlp", ("gate", "up"), "bias") if mlp_bias else None,
        down=tensors(f"{dense}.down_proj.weight") if dense else None,
        down_bias=tensors("mlp.down_proj.bias") if mlp_bias else None,
    )


def _expert_weights(tensors: "_LayerTensors", model: Architecture) -> ExpertWeights:
    experts = model.experts
    assert experts is not None
    naming = experts.names
    names = [f"{naming.block}.experts.{number}" for number in range(experts.count)]
    correction = tensors(f"{naming.block}.{naming.correction}").float() if experts.correction_bias else None
    return ExpertWeights(
        router=tensors(f"{naming.block}.gate.weight").float(),
        correction=correction,
        gate_up=_stack([tensors.joined(name, (naming.gate, naming.up)) for name in names]),
        down=_stack([tensors(f"{name}.{naming.down}.weight") for name in names]),
        shared_gate=tensors("mlp.shared_expert_gate.weight") if experts.shared_gate else None,
    )


def _latent_projections(tensors: "_LayerTensors", latent: LatentAttention) -> torch.Tensor:
    queries = "q_proj" if latent.query_rank is None else "q_a_proj"
    return torch.cat([tensors(f"self_attn.{name}.weight") for name in (queries, "kv_a_proj_with_mqa")])


def _latent_weights(tensors: "_LayerTensors") -> LatentWeights:
    has_latent_queries = "self_attn.q_b_proj.weight" in tensors
    return LatentWeights(
        query_norm=tensors("self_attn.q_a_layernorm.weight") if has_latent_queries else None,
        query=tensors("self_attn.q_b_proj.weight") if has_latent_queries else None,
        kv_norm=tensors("self_attn.kv_a_layernorm.weight"),
        kv=tensors("self_attn.kv_b_proj.weight"),
    )


def _delta_projections(tensors: "_LayerTensors", delta: DeltaNet) -> torch.Tensor:
    if not delta.by_head:
        return _join([tensors(f"linear_attn.in_proj_{name}.weight") for name in ("qkv", "z", "b", "a")])
    by_head = tensors("linear_attn.in_proj_qkvz.weight").unflatten(0, (delta.key_heads, -1))
    parts = list(by_head.split((*delta.rows, delta.rows[2]), 1))
    parts += tensors("linear_attn.in_proj_ba.weight").unflatten(0, (delta.key_heads, -1)).chunk(2, 1)
    return torch.cat([part.flatten(0, 1) for part in parts])


def _delta_weights(tensors: "_LayerTensors") -> DeltaWeights:
    taps = tensors("linear_attn.conv1d.weight").squeeze(1)
    vectors = (tensors(f"linear_attn.{name}") for name in ("A_log", "dt_bias", "norm.weight"))
    return DeltaWeights(taps, *vectors)


def pack_for_onednn(weights: ModelWeights, *, wide_head: bool = False) -> ModelWeights:
    """Returns copies of the matrices in the order in which oneDNN reads them, which is up to twice as fast.

    Otherwise every product would reorder its matrix first, which for few rows costs as much as the product
    itself. Weights stay as they are on other devices, and in dtypes that oneDNN does not compute; so do
    norms, biases and the embedding. Experts stay as they are, too: their products have as many rows as tokens
    happen to be routed to them, and oneDNN would generate code for each number. `wide_head`: on a CPU the
    head becomes a float32 copy, as its products are float32.
    """
    if wide_head and weights.head.device.type == "cpu":
        weights = replace(weights, head=weights.head.float())
    if not is_packable(weights.norm):
        return weights
    return with_matrices(weights, torch.ops.mkldnn._reorder_linear_weight)


def is_packable(example: torch.Tensor) -> bool:
    """Returns whether oneDNN computes on the device and in the dtype of a tensor."""
    if example.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return example.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _LayerTensors:
    """Looks up the tensors of one layer by the ends of their names."""

    def __init__(self, named: Tensors, prefix: str) -> None:
        self._named, self._prefix = named, prefix

    def __call__(self, name: str) -> torch.Tensor:
        return self._named[self._prefix + name]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._named

    def fused(self, block: str, names: Sequence[str], kind: str) -> torch.Tensor:
        return _join([self(f"{block}.{name}_proj.{kind}") for name in names])

    def joined(self, block: str, names: Sequence[str]) -> torch.Tensor:
        return _join([self(f"{block}.{name}.weight") for name in names])


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    """Concatenates along rows, without a copy where the parts follow each other in one buffer."""
    first = parts[0]
    following = np.cumsum([first.data_ptr()] + [part.nbytes for part in parts[:-1]]).tolist()
    adjacent = all(
        part.is_contiguous()
        and part.data_ptr() == pointer
        and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        for part, pointer in zip(parts, following, strict=True)
    )
    if not adjacent:
        return torch.cat(parts)
    rows = sum(part.shape[0] for part in parts)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _stack(matrices: list[torch.Tensor]) -> torch.Tensor:
    """Stacks matrices, without a copy where they are at equal distances in one buffer."""
    first = matrices[0]
    pointers = [matrix.data_ptr() for matrix in matrices]
    distances = {after - before for before, after in pairwise(pointers)}
    same_buffer = len({matrix.untyped_storage().data_ptr() for matrix in matrices}) == 1
    if len(distances) > 1 or not same_buffer or not all(matrix.is_contiguous() for matrix in matrices):
        return torch.stack(matrices)
    distance = distances.pop() // first.element_size() if distances else first.numel()
    return first.as_strided((len(matrices), *first.shape), (distance, *first.stride()))
