"""The layers of families that only transformers computes, with the engine's attention and cache.

tokens ─▶ transformers' layers ─▶ normed hidden states
                │ queries, keys, values of a layer
                ▼
  keys and values into the cache ─▶ attention of the pass, as for rlrun's own layers
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from transformers import AttentionInterface

from rlrun.models.architecture import Architecture
from rlrun.models.computation.transformers_network import build_network, check_modules, fill_buffers
from rlrun.models.tensor_names import text_tensors
from rlrun.runner.engines.native.model.cache import KVCache
from rlrun.runner.engines.native.model.decoder_layers import ForwardPass
from rlrun.runner.engines.native.model.fused_weights import stack
from rlrun.runner.engines.native.model.layer_tensors import join
from rlrun.runner.engines.native.model.layer_weights import ModelWeights, Tensors
from rlrun.runner.engines.native.model.torch_ops import Scores, store

ATTENTION = "rlrun_cached"
_STACK = ".inner_experts."
"""Is in the names of the parameters with all experts of a layer (`rlrun.models.hf_tensor`)."""


@dataclass(slots=True)
class _CachedPass:
    """What attention needs of a forward pass; transformers hands it on through its layers."""

    cache: KVCache
    forward: ForwardPass
    num_calls: int = 0
    """How often attention has been called in this pass, which is the number of the next layer."""


class TransformersLayers:
    """Runs transformers' layers; cache and tokens are handed over with each pass."""

    def __init__(self, folder: Path, model: Architecture, cache: KVCache, length: int) -> None:
        """`length`: tokens of the longest sequence.

        Raises ValueError for a model that cannot be computed token by token.
        """
        AttentionInterface.register(ATTENTION, _attention)
        self._model = model
        dtype, device = cache.keys.dtype, cache.keys.device
        self._network = build_network(folder, ATTENTION, dtype).eval()
        check_modules(self._network, model)
        _check_rotation(self._network.model, length)
        for module in self._network.model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = torch.empty_like(buffer, device=device)
        fill_buffers(self._network)

    def load(self, named: Tensors) -> None:
        """Uses a checkpoint's tensors as the layers' parameters, without a copy except of experts whose
        matrices are apart.
        """
        tensors = layer_parameters(named, self._model)
        for prefix, module in self._network.model.named_modules(prefix="model"):
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    tensor = self._taken(tensors, f"{prefix}.{name}")
                    module._parameters[name] = nn.Parameter(tensor, requires_grad=False)
            for name in module._buffers.keys() - module._non_persistent_buffers_set:
                module._buffers[name] = self._taken(tensors, f"{prefix}.{name}")
        if tensors:
            raise ValueError(f"transformers' {self._model.family} has no parameter {min(tensors)}")

    def release(self) -> None:
        """Frees the parameters until the next `load`."""
        for module in self._network.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(parameter.new_empty(0), requires_grad=False)

    def _taken(self, tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        if name not in tensors:
            raise ValueError(
                f"the files of this {self._model.family} have no tensor for {name} of transformers"
            )
        return tensors.pop(name)

    def run(self, weights: ModelWeights, cache: KVCache, forward: ForwardPass) -> torch.Tensor:
        """Returns the normed hidden states `[T, H]`."""
        tokens, positions, _ = forward.inputs
        cached_pass = _CachedPass(cache, forward)
        states: torch.Tensor = self._network.model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, cached_pass=cached_pass
        ).last_hidden_state[0]
        if cached_pass.num_calls != self._model.layers:
            raise ValueError(
                f"{self._model.family} calls attention {cached_pass.num_calls} times, and the cache has "
                f'{self._model.layers} layers: use engine.type = "sglang"'
            )
        return states

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Returns the states that `run` returned, which are normed."""
        return x


def layer_parameters(named: Tensors, model: Architecture) -> dict[str, torch.Tensor]:
    """Returns the parameters of transformers' layers, by name, without the head.

    transformers stacks the matrices of a layer's experts: `gate_up_proj` `[E, 2F, H]` and `down_proj`
    `[E, H, F]`.
    """
    parameters, experts = {}, {}  # type: dict[str, torch.Tensor], dict[str, dict[str, list[torch.Tensor]]]
    for tensor in text_tensors(model):
        layer, is_expert, matrix = tensor.parameter.partition(_STACK)
        if is_expert:
            experts.setdefault(layer, {}).setdefault(matrix, []).append(named[tensor.name])
        elif tensor.parameter != "lm_head.weight":
            parameters[tensor.parameter] = named[tensor.name]
    for layer, matrices in experts.items():
        pairs = zip(matrices["w1_EFD"], matrices["w3_EFD"], strict=True)
        parameters[f"{layer}.gate_up_proj"] = stack([join(list(pair)) for pair in pairs])
        parameters[f"{layer}.down_proj"] = stack(matrices["w2_EDF"])
    return parameters


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    cached_pass: _CachedPass,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attends to the cache; transformers' interface: `[1, N, T, D]` inputs, `[1, T, N, D]` output."""
    cache, index = cached_pass.cache, cached_pass.num_calls
    cached_pass.num_calls += 1
    widest, width = cache.keys.shape[3], query.shape[-1]
    fits = key.shape == value.shape and key.shape[1] == cache.keys.shape[2] and width <= widest
    if not fits or softcap is not None or not getattr(module, "is_causal", True):
        raise ValueError(
            f"{type(module).__name__} has a kind of attention that the native engine does not compute: use "
            'engine.type = "sglang"'
        )
    qkv = torch.cat([heads[0].transpose(0, 1) for heads in (query, key, value)], 1)
    qkv = pad(qkv, (0, widest - width))  # layers may have heads of several widths
    store(qkv, (cache.keys[index], cache.values[index], cached_pass.forward.inputs[2]))
    scores = Scores(width**-0.5 if scaling is None else scaling, sliding_window, s_aux)
    attended = cached_pass.forward.attend(index, qkv, scores)
    return attended.view(1, len(attended), query.shape[1], widest)[..., :width], None


def _check_rotation(network: nn.Module, length: int) -> None:
    """Raises ValueError for rotary frequencies that depend on the length which a sequence will have."""
    for module in network.modules():
        original = _original_length(module)
        if original is not None and length > original:
            raise ValueError(
                f"the model's RoPE has other frequencies for sequences of more than {original} tokens, and "
                f"this engine's have up to {length}: lower rollout.max_prompt_tokens or "
                "rollout.max_response_tokens, or max_length in [[engines]]"
            )


def _original_length(module: nn.Module) -> int | None:
    """Returns the length up to which a module rotates by one set of frequencies; None: at any length."""
    rope_type = getattr(module, "rope_type", None)
    # a dict in models with several kinds of layers
    kinds = rope_type.values() if isinstance(rope_type, dict) else [rope_type]
    if not any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in kinds):
        return None
    rope = module.config.rope_parameters
    tables = [rope, *(table for table in rope.values() if isinstance(table, dict))]
    lengths = [table.get("original_max_position_embeddings") for table in tables]
    return min(filter(None, lengths), default=module.config.max_position_embeddings)
