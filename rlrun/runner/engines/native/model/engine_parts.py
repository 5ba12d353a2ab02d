"""The parts of a decoder that differ between model families, as the native engine computes them.

    tensors ─▶ `attention_weights`, `own_weights`                    when weights arrive
    hidden ─norm─▶ · qkv ─▶ `attention`, or the recurrence ─▶ · output ─▶ +      in every pass

A family whose layers are not a Llama's has a subclass `Parts` of `EngineParts` in its `engine_layers`
(`rlrun.models.families`), which overrides what differs.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import QKV
from rlrun.runner.engines.native.model.layer_tensors import LayerTensors
from rlrun.runner.engines.native.model.layer_weights import AttentionWeights
from rlrun.runner.engines.native.model.recurrent import PromptRecurrence, Recur, RecurrentStates


def engine_parts(model: Architecture) -> "EngineParts":
    """Returns the parts of a model's decoder, those of its family's own layers included."""
    if model.own_layers is None:
        return EngineParts(model)
    parts: EngineParts = import_module(f"{model.own_layers}.engine_layers").Parts(model)
    return parts


class EngineParts:
    """The parts of a decoder like Llama: grouped-query attention, and no recurrent states."""

    def __init__(self, model: Architecture) -> None:
        self.model = model

    def attention_weights(self, tensors: LayerTensors, layer: int) -> AttentionWeights:
        """Returns the weights of a layer's attention, or of what it has in place of attention."""
        model = self.model
        return AttentionWeights(
            qkv=self.projections(tensors),
            qkv_bias=tensors.fused("self_attn", QKV, "bias") if model.qkv_bias else None,
            q_norm=tensors("self_attn.q_norm.weight") if model.qk_norm else None,
            k_norm=tensors("self_attn.k_norm.weight") if model.qk_norm else None,
            output=tensors("self_attn.o_proj.weight"),
            output_bias=tensors("self_attn.o_proj.bias") if model.output_bias else None,
        )

    def projections(self, tensors: LayerTensors) -> torch.Tensor:
        """Returns the matrix that attention multiplies the hidden states by."""
        return tensors.fused("self_attn", QKV)

    def own_weights(self, tensors: LayerTensors, layer: int) -> Any:
        """Returns further weights of a layer, which the other methods get as `own`; None: it has none."""
        return None

    def attention(
        self, projected: torch.Tensor, own: Any, attend: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Returns the output `[T, heads · V]` of attention, before the output projection.

        `projected` `[T, rows of qkv]`. `attend` gets queries, keys and values `[T, heads + 2 kv heads, D]`;
        it normalises them by `q_norm` and `k_norm`, rotates them, and returns `[T, heads · D]`.
        """
        return attend(projected.view(len(projected), -1, self.model.head_dim))

    def norm_scale(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns what a norm multiplies by; the norms within Gated DeltaNet do not use this."""
        return 1 + weight.float() if self.model.offset_norms else weight

    def shared_experts(self, normed: torch.Tensor, output: torch.Tensor, own: Any) -> torch.Tensor:
        """Returns what the shared experts add to the routed ones `[T, H]`; `output`: their feed-forward's."""
        return output

    def is_recurrent(self, layer: int) -> bool:
        """Returns whether a layer has recurrent states in place of attention."""
        return False

    def make_states(self, slots: int, dtype: torch.dtype, device: torch.device) -> RecurrentStates | None:
        """Returns zeroed states for `slots` rows and kept samples, and for padding rows; None: the model has
        no recurrent layers, and the two methods below are not called.
        """
        return None

    def prompt_recurrence(
        self, lengths: Sequence[int], before: Sequence[RecurrentStates | None], *, keeps_states: bool
    ) -> PromptRecurrence | None:
        """Returns the recurrent layers over packed prompts; None: the model has none.

        `lengths`: of the prompts without their cached prefixes. `before`: the states after those prefixes;
        empty: all prompts begin at zero.
        """
        return None

    def step_recurrence(self, states: RecurrentStates, slots: torch.Tensor) -> Recur | None:
        """Returns the recurrent layers over one token of each row, which replaces the rows' states.

        `slots` `[M]`: the slot of each row.
        """
        return None
