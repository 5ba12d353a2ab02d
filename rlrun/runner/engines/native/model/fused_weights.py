"""The model's weights as the engine multiplies by them: q, k, v fused into one matrix, and gate, up into
one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from rlrun.models.architecture import Architecture
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.weights.tensor_slots import end_of, layout, num_bytes

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer. H: hidden, A: heads x head_dim, K: kv heads x head_dim, F: feed-forward.

    The C++ function `decode` receives the fields in this order.
    """

    input_norm: torch.Tensor
    """`[H]`"""
    qkv: torch.Tensor
    """`[A + 2K, H]`"""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    """`[head_dim]`; None for Llama."""
    k_norm: torch.Tensor | None
    output: torch.Tensor
    """`[H, A]`"""
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    """`[H]`"""
    gate_up: torch.Tensor
    """`[2F, H]`"""
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    """`[H, F]`"""
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """The weights of Gated DeltaNet beside its projections, which are `qkv` and `output` of `LayerWeights`.

    `qkv` `[C + V + 2N, H]` has the rows of queries, keys and values, of the gate, of beta and of the decay.
    """

    taps: torch.Tensor
    """`[C, taps]`"""
    a_log: torch.Tensor
    """`[N]`"""
    dt_bias: torch.Tensor
    norm: torch.Tensor
    """`[V]` of each head's output."""


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


def fuse(named: Tensors, model: Architecture) -> ModelWeights:
    """Fuses a checkpoint's tensors; those that are adjacent in memory become a view, all others are
    copied.
    """
    layers, deltas = [], []
    for index in range(model.layers):
        tensors = _LayerTensors(named, f"{model.prefix}layers.{index}.")
        is_delta = model.is_delta(index)
        deltas.append(_delta_weights(tensors) if is_delta else None)
        has_norms = model.qk_norm and not is_delta
        fused = _delta_projections(tensors) if is_delta else tensors.fused("self_attn", "qkv", "weight")
        layers.append(
            LayerWeights(
                input_norm=tensors("input_layernorm.weight"),
                qkv=fused,
                qkv_bias=tensors.fused("self_attn", "qkv", "bias") if model.qkv_bias else None,
                q_norm=tensors("self_attn.q_norm.weight") if has_norms else None,
                k_norm=tensors("self_attn.k_norm.weight") if has_norms else None,
                output=tensors("linear_attn.out_proj.weight" if is_delta else "self_attn.o_proj.weight"),
                output_bias=tensors("self_attn.o_proj.bias") if model.output_bias else None,
                mlp_norm=tensors("post_attention_layernorm.weight"),
                gate_up=tensors.fused("mlp", ("gate", "up"), "weight"),
                gate_up_bias=tensors.fused("mlp", ("gate", "up"), "bias") if model.mlp_bias else None,
                down=tensors("mlp.down_proj.weight"),
                down_bias=tensors("mlp.down_proj.bias") if model.mlp_bias else None,
            )
        )
    embedding = named[f"{model.prefix}embed_tokens.weight"]
    head = embedding if model.tied else named["lm_head.weight"]
    norm = named[f"{model.prefix}norm.weight"]
    return ModelWeights(embedding, tuple(layers), norm, head, named, tuple(deltas) if model.delta else ())


def _delta_projections(tensors: "_LayerTensors") -> torch.Tensor:
    return _join([tensors(f"linear_attn.in_proj_{name}.weight") for name in ("qkv", "z", "b", "a")])


def _delta_weights(tensors: "_LayerTensors") -> DeltaWeights:
    taps = tensors("linear_attn.conv1d.weight").squeeze(1)
    vectors = (tensors(f"linear_attn.{name}") for name in ("A_log", "dt_bias", "norm.weight"))
    return DeltaWeights(taps, *vectors)


def pack_for_onednn(weights: ModelWeights, *, wide_head: bool = False) -> ModelWeights:
    """Returns copies of the matrices in the order in which oneDNN reads them, which is up to twice as fast.

    Otherwise every product would reorder its matrix first, which for few rows costs as much as the product
    itself. Weights stay as they are on other devices, and in dtypes that oneDNN does not compute; so do
    norms, biases and the embedding. `wide_head`: on a CPU the head becomes a float32 copy, as its products
    are float32.
    """
    if wide_head and weights.head.device.type == "cpu":
        weights = replace(weights, head=weights.head.float())
    if not is_packable(weights.norm):
        return weights
    reorder = torch.ops.mkldnn._reorder_linear_weight
    layers = tuple(
        replace(
            layer,
            qkv=reorder(layer.qkv),
            output=reorder(layer.output),
            gate_up=reorder(layer.gate_up),
            down=reorder(layer.down),
        )
        for layer in weights.layers
    )
    return replace(weights, layers=layers, head=reorder(weights.head), named={})


def is_packable(example: torch.Tensor) -> bool:
    """Returns whether oneDNN computes on the device and in the dtype of a tensor."""
    if example.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return example.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def without_elements(weights: ModelWeights) -> ModelWeights:
    """Returns tensors of the same dtypes and devices without elements, to free the memory of weights."""

    def emptied(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.new_empty(0)

    norm = weights.norm.new_empty(0)
    layers = tuple(
        LayerWeights(**{name.name: emptied(getattr(layer, name.name)) for name in fields(layer)})
        for layer in weights.layers
    )
    deltas = tuple(
        delta and DeltaWeights(**{each.name: norm for each in fields(delta)}) for delta in weights.deltas
    )
    return ModelWeights(norm, layers, norm, norm, deltas=deltas)


def allocate(model: Architecture, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """Returns uninitialised tensors of the whole model in one buffer, laid out so that `fuse` copies
    nothing.
    """
    slots = layout(weight_shapes(model), str(dtype).removeprefix("torch."))
    buffer = torch.empty(end_of(slots), dtype=torch.uint8, device=device)
    return {
        slot.name: buffer[slot.offset : slot.offset + num_bytes(slot)].view(dtype).view(slot.shape)
        for slot in slots
    }


class OpenFolder:
    """The tensors of a folder's `*.safetensors`, which has every weight of a model."""

    def __init__(self, folder: str | Path, model: Architecture) -> None:
        """Opens the files. Raises ValueError if a tensor is missing or has another shape."""
        files = sorted(Path(folder).glob("*.safetensors"))
        if not files:
            raise ValueError(f"{folder} has no *.safetensors file")
        opened = [safe_open(str(file), framework="pt") for file in files]
        self._readers = {name: reader for reader in opened for name in reader.keys()}  # noqa: SIM118
        shapes = {name: tuple(reader.get_slice(name).get_shape()) for name, reader in self._readers.items()}
        check_shapes(shapes, model, str(folder))

    def read(self, into: Tensors) -> None:
        """Fills `into`, converting dtypes; one tensor at a time is in memory besides."""
        for name, tensor in into.items():
            tensor.copy_(self._readers[name].get_tensor(name))


def check_shapes(shapes: Mapping[str, Sequence[int]], model: Architecture, source: str) -> None:
    """Raises ValueError unless `shapes` has every weight of the model; further tensors are ignored."""
    needed = weight_shapes(model)
    missing = [name for name in needed if name not in shapes]
    if missing:
        raise ValueError(
            f"{source}: {len(missing)} of {len(needed)} weights are missing, the first is {missing[0]}"
        )
    for name, shape in needed.items():
        if tuple(shapes[name]) != shape:
            raise ValueError(f"{source}: {name} has shape {tuple(shapes[name])}, the model needs {shape}")


class _LayerTensors:
    """Looks up the tensors of one layer by the ends of their names."""

    def __init__(self, named: Tensors, prefix: str) -> None:
        self._named, self._prefix = named, prefix

    def __call__(self, name: str) -> torch.Tensor:
        return self._named[self._prefix + name]

    def fused(self, block: str, names: Sequence[str], kind: str) -> torch.Tensor:
        return _join([self(f"{block}.{name}_proj.{kind}") for name in names])


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
