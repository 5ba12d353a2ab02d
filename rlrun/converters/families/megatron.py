"""Reads checkpoints of Megatron-Core's format `torch_dist`, which slime writes, by Hugging Face names.

Megatron keeps q, k and v of a group of heads together, and the gate of a feed-forward above its matrix up.
Layers, and the experts of a layer, either have names of their own or are stacked along a first dimension:

    decoder.layers.self_attention.linear_qkv.weight   [layers, groups · (q… k v) · head, hidden]
    decoder.layers.0.mlp.experts.experts.linear_fc1.weight   [experts, gate + up, hidden]

The embedding and the head have rows behind the vocabulary, which are left out. Source: Megatron-Core 0.16,
`sharded_state_dict` of `transformer_block.py`, `mlp.py`, `moe/experts.py` and `multi_latent_attention.py`.
"""

import re
from collections.abc import Iterator

import torch

from rlrun.converters.families.expected_tensors import Lenience, check_shapes, hf_shapes
from rlrun.converters.families.mapping import Mapped
from rlrun.converters.folders.dcp_folder import DcpFolder
from rlrun.converters.tensors.content import Content, plain
from rlrun.converters.tensors.stored import StoredTensor, join
from rlrun.models.architecture import Architecture
from rlrun.models.checked_values import abbreviated
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.tensor_names import text_tensors

_EMBEDDING = "embedding.word_embeddings.weight"
_LAYERS = "decoder.layers."
_EXPERTS = "mlp.experts.experts."
_MODEL_NAMES = {
    "tok_embeddings.weight": _EMBEDDING,
    "norm.weight": "decoder.final_layernorm.weight",
    "lm_head.weight": "output_layer.weight",
}
_PREFIXES = ("embedding.", "decoder.", "output_layer.")
"""The names of the policy's parameters begin with these: not those of its optimizer, and of layers that
predict further tokens (`mtp.`)."""
_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_LAYER_NAMES = {
    "attention_norm.weight": ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
    "attention.wo.weight": ("self_attention.linear_proj.weight",),
    "attention.wo.bias": ("self_attention.linear_proj.bias",),
    "ffn_norm.weight": ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    "feed_forward.w2.weight": ("mlp.linear_fc2.weight",),
    "moe.router.gate.weight": ("mlp.router.weight",),
    "moe.expert_bias_E": ("mlp.router.expert_bias",),
    "moe.shared_experts.w2.weight": ("mlp.shared_experts.linear_fc2.weight",),
    "moe.shared_experts.gate.weight": ("mlp.shared_experts.gate_weight",),
}
"""Megatron's names of a layer's tensors. A norm belongs to the matrix behind it with Transformer Engine."""
_HEADS_NAMES = {
    "attention.q_norm.weight": ("self_attention.q_layernorm.weight",),
    "attention.k_norm.weight": ("self_attention.k_layernorm.weight",),
}
_LATENT_NAMES = {
    "attention.wq.weight": ("self_attention.linear_q_proj.weight",),
    "attention.wq_a.weight": ("self_attention.linear_q_down_proj.weight",),
    "attention.q_norm.weight": (
        "self_attention.linear_q_up_proj.layer_norm_weight",
        "self_attention.q_layernorm.weight",
    ),
    "attention.wq_b.weight": ("self_attention.linear_q_up_proj.weight",),
    "attention.wkv_a.weight": ("self_attention.linear_kv_down_proj.weight",),
    "attention.kv_norm.weight": (
        "self_attention.linear_kv_up_proj.layer_norm_weight",
        "self_attention.kv_layernorm.weight",
    ),
    "attention.wkv_b.weight": ("self_attention.linear_kv_up_proj.weight",),
}
_GATED = {
    "feed_forward.": "mlp.linear_fc1.weight",
    "moe.shared_experts.": "mlp.shared_experts.linear_fc1.weight",
    "moe.routed_experts.inner_experts.": f"{_EXPERTS}linear_fc1.weight",
}
"""Where gate (w1) and up (w3) lie one above the other."""


def is_megatron(folder: DcpFolder) -> bool:
    """Returns whether the checkpoint has Megatron's names."""
    return _EMBEDDING in folder.tensors


def from_megatron(model: Architecture, folder: DcpFolder, lenience: Lenience) -> Mapped:
    """Returns the tensors of a checkpoint by Hugging Face names.

    Raises ValueError for models whose layers Megatron does not have, and for missing, unknown and wrong
    tensors, unless `lenience` accepts them.
    """
    _check_layers(model, folder)
    names, used = _Names(model, folder, lenience), set()
    contents: dict[str, Content] = {}
    for tensor in text_tensors(model):
        if (found := names.find(model, tensor)) is not None:
            stored_name, contents[tensor.name] = found[0], plain(found[1])
            used.add(stored_name)
            if (dtype := found[1].dtype) not in _DTYPES:
                raise ValueError(f"{stored_name} in {folder.folder} is {dtype}, and its scales are not known")
    unused = [name for name in folder.tensors if name.startswith(_PREFIXES) and name not in used]
    unknown = sorted(name for name in unused if not name.endswith("_extra_state"))
    if unknown and not lenience.unknown:
        raise ValueError(
            f"{folder.folder} has {abbreviated(unknown)}, which its config.json does not describe"
        )
    shapes = {name: content.tensor.shape for name, content in contents.items()}
    missing, _ = check_shapes(hf_shapes(model), shapes, str(folder.folder), lenience)
    return Mapped(contents, missing, unknown)


def _check_layers(model: Architecture, folder: DcpFolder) -> None:
    """Raises ValueError for layers that Megatron-Core does not have: each of its users writes its own."""
    own = {
        "Gated DeltaNet": model.delta is not None,
        "sparse attention": model.indexer is not None,
        "attention sinks": model.sinks,
        "gated attention": model.output_gate,
        "norms over all heads": model.joint_qk_norm,
        "layers of transformers": bool(model.stored_tensors),
        "a vision tower": model.tower is not None,
        "experts with clamped gates": model.experts is not None and model.experts.clamped_gate,
    }
    if reasons := [name for name, present in own.items() if present]:
        raise ValueError(
            f"{folder.folder} is a checkpoint of Megatron, and it is not known how it holds {reasons[0]} "
            f"({model.family}): convert it with the tools of the trainer that wrote it"
        )


class _Names:
    """Finds tensors by torchtitan's names."""

    def __init__(self, model: Architecture, folder: DcpFolder, lenience: Lenience) -> None:
        self._model = model
        self._folder = folder
        self._lenience = lenience
        self._found: dict[tuple[str, int | None], StoredTensor] = {}
        """Tensors, and layers of stacked tensors, by name and layer: those of experts have many parts."""

    def find(self, model: Architecture, tensor: HfTensor) -> tuple[str, StoredTensor] | None:
        """Returns Megatron's name and the tensor; None if the checkpoint does not have it.

        Raises ValueError for a tensor that is not a whole number of the model's parts.
        """
        in_layer = re.fullmatch(r"layers\.(\d+)\.(.+)", tensor.parameter)
        if in_layer is None:
            found = self._stored(_MODEL_NAMES[tensor.parameter])
            if found is None or not found[1].shape:
                return found
            return found[0], found[1].part(0, min(tensor.shape[0], found[1].shape[0]))
        layer, parameter = int(in_layer[1]), in_layer[2]
        for name in _layer_names(model, parameter):
            if (found := self._in_layer(layer, name, tensor.expert)) is not None:
                try:
                    return found[0], _own_part(model, parameter, found[1])
                except ValueError as error:
                    raise ValueError(f"{found[0]} in {self._folder.folder}: {error}") from None
        return None

    def _in_layer(self, layer: int, name: str, expert: int | None) -> tuple[str, StoredTensor] | None:
        """Returns a tensor of a layer, or of one of its experts."""
        for path, stacked in ((f"{_LAYERS}{layer}.", None), (_LAYERS, layer)):
            if expert is not None:
                own_name = name.replace(_EXPERTS, f"{_EXPERTS}{expert}.")
                if (found := self._stored(path + own_name, stacked)) is not None:
                    return found
            found = self._stored(path + name, stacked)
            if found is not None and expert is not None:
                assert self._model.experts is not None
                found = self._member(found, expert, self._model.experts.count, "experts")
            if found is not None:
                return found
        return None

    def _member(
        self, stack: tuple[str, StoredTensor], number: int, count: int, kind: str
    ) -> tuple[str, StoredTensor] | None:
        """Returns one layer or expert of a stack; None if it has fewer. Raises ValueError if it has more
        than the model.
        """
        name, tensor = stack
        if not tensor.shape or number >= tensor.shape[0]:
            return None
        if tensor.shape[0] > count and not self._lenience.unknown:
            raise ValueError(
                f"{name} in {self._folder.folder} has {tensor.shape[0]} {kind}, and its config.json "
                f"describes {count}"
            )
        return name, tensor.index(number)

    def _stored(self, name: str, layer: int | None = None) -> tuple[str, StoredTensor] | None:
        """Returns a tensor, or one layer of a stacked tensor; None if the checkpoint does not have it."""
        if name not in self._folder.tensors:
            return None
        if (name, layer) not in self._found:
            if layer is None:
                self._found[name, None] = self._folder.read(name)
            else:
                whole = self._stored(name)
                found = whole and self._member(whole, layer, self._model.layers, "layers")
                if found is None:
                    return None
                self._found[name, layer] = found[1]
        return name, self._found[name, layer]


def _layer_names(model: Architecture, parameter: str) -> Iterator[str]:
    """Yields the names in a layer that a parameter may be found under."""
    if parameter.startswith("attention.qkv_linear."):
        yield f"self_attention.linear_qkv.{parameter.rpartition('.')[2]}"
    attention = _HEADS_NAMES if model.latent is None else _LATENT_NAMES
    yield from _LAYER_NAMES.get(parameter, attention.get(parameter, ()))
    for start, name in _GATED.items():
        matrix = parameter.removeprefix(start)
        if parameter.startswith(start) and matrix.startswith(("w1", "w3")):
            yield name
        elif parameter.startswith(start) and matrix.startswith("w2_"):
            yield f"{_EXPERTS}linear_fc2.weight"


def _own_part(model: Architecture, parameter: str, stored: StoredTensor) -> StoredTensor:
    """Returns the rows of one parameter in a tensor that holds several. Raises ValueError if it does not."""
    if not stored.shape:
        return stored
    matrix = parameter.split(".")[-2 if parameter.endswith((".weight", ".bias")) else -1][:2]
    if parameter.startswith("attention.qkv_linear."):
        return _of_groups(model, parameter.split(".")[-2], stored)
    if any(parameter.startswith(start) for start in _GATED) and matrix in ("w1", "w3"):
        half, odd = divmod(stored.shape[0], 2)
        if odd:
            raise ValueError(f"its {stored.shape[0]} rows are not a gate and as many rows of up")
        return stored.part(0, half) if matrix == "w1" else stored.part(half, 2 * half)
    return stored


def _of_groups(model: Architecture, matrix: str, stored: StoredTensor) -> StoredTensor:
    """Returns the rows of q, k or v, which each group of heads has between those of the others.

    Raises ValueError for another number of rows than that of the model's groups.
    """
    queries, size = model.heads // model.kv_heads, model.head_dim
    first, count = {"wq": (0, queries), "wk": (queries, 1), "wv": (queries + 1, 1)}[matrix]
    rows = (queries + 2) * size
    if stored.shape[0] != model.kv_heads * rows:
        raise ValueError(
            f"it has {stored.shape[0]} rows, and config.json describes {model.kv_heads} groups of "
            f"{queries} q, k and v of {size} rows each"
        )
    starts = range(first * size, stored.shape[0], rows)
    return join(stored.part(start, start + count * size) for start in starts)
