"""Fuses a checkpoint's tensors: q, k, v into one matrix, gate and up into one, and experts into stacks."""

from dataclasses import replace
from itertools import pairwise

import torch

from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HEADS, TRANSFORMERS_EMBEDDING
from rlrun.models.tensor_names import GATE_UP, text_tensors
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.engines.native.model.engine_parts import EngineParts, engine_parts
from rlrun.runner.engines.native.model.layer_tensors import LayerTensors
from rlrun.runner.engines.native.model.layer_weights import (
    ExpertWeights,
    LayerWeights,
    ModelWeights,
    Tensors,
    with_matrices,
)
from rlrun.runner.weights.tensor_slots import end_of, layout, tensors_in


def allocate(model: Architecture, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """Returns uninitialised tensors of the whole model in one buffer, laid out so that `fuse` copies
    nothing.
    """
    slots = layout(weight_shapes(model), str(dtype).removeprefix("torch."))
    return tensors_in(torch.empty(end_of(slots), dtype=torch.uint8, device=device), slots)


def fuse(named: Tensors, model: Architecture) -> ModelWeights:
    """Fuses a checkpoint's tensors; those that are adjacent in memory become a view, all others are
    copied.

    Layers that transformers computes take the tensors as they are.
    """
    if model.stored_tensors:
        return _unfused(named, model)
    parts = engine_parts(model)
    by_layer = [LayerTensors(named, f"{model.prefix}layers.{index}.") for index in range(model.layers)]
    embedding = named[f"{model.prefix}embed_tokens.weight"]
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_layer_weights(tensors, parts, index) for index, tensors in enumerate(by_layer)),
        norm=named[f"{model.prefix}norm.weight"],
        head=embedding if model.tied else named["lm_head.weight"],
        named=named,
        experts=tuple(_expert_weights(tensors, model, index) for index, tensors in enumerate(by_layer)),
        own=tuple(parts.own_weights(tensors, index) for index, tensors in enumerate(by_layer)),
    )


def _unfused(named: Tensors, model: Architecture) -> ModelWeights:
    """Returns the weights of a model whose layers transformers computes."""
    names = {tensor.parameter: tensor.name for tensor in text_tensors(model)}
    embedding = named[names[TRANSFORMERS_EMBEDDING]]
    return ModelWeights(
        embedding=embedding,
        layers=(),
        norm=embedding,  # of the same device and dtype; transformers' layers norm the states
        head=embedding if model.tied else named[names[HEADS[0]]],
        named=named,
    )


def _layer_weights(tensors: LayerTensors, parts: EngineParts, index: int) -> LayerWeights:
    model = parts.model
    dense: str | None = "mlp"
    is_sparse = model.is_sparse(index)
    if is_sparse and model.experts is not None:
        names = model.experts.names
        dense = f"{names.block}.{names.shared}" if model.experts.shared else None
    mlp_bias = model.mlp_bias and not is_sparse
    return LayerWeights(
        **parts.attention_weights(tensors, index)._asdict(),
        input_norm=tensors("input_layernorm.weight"),
        mlp_norm=tensors("post_attention_layernorm.weight"),
        gate_up=tensors.fused(dense, GATE_UP) if dense else None,
        gate_up_bias=tensors.fused("mlp", GATE_UP, "bias") if mlp_bias else None,
        down=tensors(f"{dense}.down_proj.weight") if dense else None,
        down_bias=tensors("mlp.down_proj.bias") if mlp_bias else None,
    )


def _expert_weights(tensors: LayerTensors, model: Architecture, index: int) -> ExpertWeights | None:
    experts = model.experts
    if experts is None or not model.is_sparse(index):
        return None
    naming = experts.names
    names = [f"{naming.block}.experts.{number}" for number in range(experts.count)]
    correction = tensors(f"{naming.block}.{naming.correction}").float() if experts.correction_bias else None
    return ExpertWeights(
        router=tensors(f"{naming.block}.gate.weight").float(),
        correction=correction,
        gate_up=stack([tensors.fused(name, (naming.gate, naming.up)) for name in names]),
        down=stack([tensors(f"{name}.{naming.down}.weight") for name in names]),
    )


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


def stack(matrices: list[torch.Tensor]) -> torch.Tensor:
    """Stacks matrices, without a copy where they are at equal distances in one buffer."""
    first = matrices[0]
    pointers = [matrix.data_ptr() for matrix in matrices]
    distances = {after - before for before, after in pairwise(pointers)}
    same_buffer = len({matrix.untyped_storage().data_ptr() for matrix in matrices}) == 1
    if len(distances) > 1 or not same_buffer or not all(matrix.is_contiguous() for matrix in matrices):
        return torch.stack(matrices)
    distance = distances.pop() // first.element_size() if distances else first.numel()
    return first.as_strided((len(matrices), *first.shape), (distance, *first.stride()))
