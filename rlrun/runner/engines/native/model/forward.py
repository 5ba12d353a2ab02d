"""The forward passes of the native engine.

packed prompts ─▶ prefill ─┐
prompts to score ─▶ states ├─▶ normed hidden states ─▶ logits
one token per row ─▶ decode┘

There are three ways to compute them: C++ kernels on a CPU (`native_ops`), flash attention on a GPU
(`flash_ops`), and plain torch for everything else (`torch_ops`), such as float32 on a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from itertools import count, zip_longest
from math import prod
from typing import Protocol

import numpy as np
import torch

from rlrun.models.architecture import Architecture
from rlrun.models.rope_tables import rope_tables
from rlrun.runner.engines.native.model import flash_ops, native_ops, torch_ops
from rlrun.runner.engines.native.model.batches import DecodeBatch, Int64
from rlrun.runner.engines.native.model.cache import KVCache
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.engines.native.model.device_copies import to_device
from rlrun.runner.engines.native.model.fused_weights import (
    DeltaWeights,
    LayerWeights,
    ModelWeights,
    pack_for_onednn,
    without_elements,
)
from rlrun.runner.engines.native.model.page_lookups import own_lookup, prompt_lookup
from rlrun.runner.engines.native.model.recurrent import PromptRecurrence, RecurrentStates, StepRecurrence

PADDING_WEIGHTS = 100_000_000
"""Padding rows times weights whose product costs about as much as oneDNN's code for a new batch size."""


class Operations(Protocol):
    """The operations that `torch_ops`, `flash_ops` and `native_ops` all have."""

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


class Model:
    """A decoder with its cache. The weights may be replaced between two passes.

    All passes return normed hidden states in the model's dtype; `logits` turns them into logits.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: ModelWeights,
        cache: KVCache,
        length: int,
        *,
        wide_head: bool = False,
        recurrent: RecurrentStates | None = None,
    ) -> None:
        """`length`: tokens of the longest sequence. `wide_head`: logits are computed in float32.

        `recurrent`: the slots for the rows' states, of a model with Gated DeltaNet.
        """
        self.architecture = architecture
        self.recurrent = recurrent
        self._wide_head = wide_head and cache.keys.dtype != torch.float32
        self.cache = cache
        self.native = _kernels_fit(architecture, cache) and native_ops.load()
        """The C++ kernels compute everything except matrix products and the attention of prompts."""
        self.flash = cache.paged
        """Attention is flash attention over pages."""
        self._ops: Operations = native_ops if self.native else flash_ops if self.flash else torch_ops
        tables = rope_tables(architecture.rope, architecture.rotated_dim, length)
        self.device = cache.keys.device
        self._cos, self._sin = (table.to(self.device) for table in tables)
        self._layer_tensors: list[torch.Tensor | None] = []
        self._num_weights = sum(prod(shape) for shape in weight_shapes(architecture).values())
        self.replace_weights(weights)

    def padded(self, rows: int) -> int:
        """Returns how many rows a pass with `rows` rows should have, padding included.

        On a CPU oneDNN generates code for every new batch size, in about 10 ms. A small model is faster with
        few sizes, each at most a quarter larger than the one before; a large model is faster without padding.
        """
        if rows <= 4 or self.flash or self.device.type != "cpu":
            return rows
        coarse = 1 << ((rows - 1).bit_length() - 3)
        step = min(coarse, 1 << max(0, PADDING_WEIGHTS // self._num_weights).bit_length())
        return -(-rows // step) * step

    def replace_weights(self, weights: ModelWeights) -> None:
        """Uses `weights` from the next pass on, which packs them first."""
        self.weights = weights
        self._prepared = False

    def release_weights(self) -> None:
        """Frees the weights until the next `replace_weights`."""
        self.weights = without_elements(self.weights)
        self._layer_tensors.clear()
        self._prepared = True

    def _prepare(self) -> None:
        """Packs new weights, and lists them as the C++ kernels take them: field after field, layer after
        layer.
        """
        if not self._prepared:
            self.weights = pack_for_onednn(self.weights, wide_head=self._wide_head)
            self._layer_tensors = [
                getattr(layer, field.name) for layer in self.weights.layers for field in fields(layer)
            ]
            self._prepared = True

    def prefill(self, packed: Int64, lengths: Sequence[int]) -> tuple[torch.Tensor, RecurrentStates | None]:
        """Runs packed prompts of the given lengths (`batches.packed_prompts`); returns their last states `[P,
        H]`, and the recurrent states after them.
        """
        recurrence = self._recurrence(lengths, keeps_states=True)
        x, ends = self._run_prompts(packed, lengths, recurrence)
        states = recurrence.states if recurrence else None
        return self._norm(x[ends[1:].long() - 1], self.weights.norm), states

    def states(self, packed: Int64, lengths: Sequence[int]) -> torch.Tensor:
        """Runs packed prompts and returns the states `[T, H]` of all tokens; slots of 0 cache nothing."""
        x, _ = self._run_prompts(packed, lengths, self._recurrence(lengths, keeps_states=False))
        return self._norm(x, self.weights.norm)

    def _recurrence(self, lengths: Sequence[int], *, keeps_states: bool) -> PromptRecurrence | None:
        delta = self.architecture.delta
        return None if delta is None else PromptRecurrence(delta, lengths, keeps_states=keeps_states)

    def _run_prompts(
        self, packed: Int64, lengths: Sequence[int], recurrence: PromptRecurrence | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the hidden states `[T, H]` after the last layer, before the norm, and the prompts' ends."""
        self._prepare()
        heads, kv_heads = self.architecture.heads, self.architecture.kv_heads
        all_ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        inputs, ends = to_device([packed, all_ends], self.device)

        def attend(index: int, qkv: torch.Tensor) -> torch.Tensor:
            if self.flash:
                return flash_ops.prefill_attention(qkv, heads, kv_heads, ends, max(lengths))
            return torch_ops.prefill_attention(qkv, heads, kv_heads, list(lengths))

        return self._run_layers(inputs, attend, recurrence), ends

    def decode(self, batch: DecodeBatch) -> torch.Tensor:
        """Runs one token of every row; returns their states `[M, H]`."""
        self._prepare()
        if self.native:
            return self._decode_native(batch)
        x = self._decode_paged(batch) if self.flash else self._decode_dense(batch)
        return self._norm(x, self.weights.norm)

    def _step_recurrence(self, batch: DecodeBatch) -> StepRecurrence | None:
        if self.architecture.delta is None or self.recurrent is None:
            return None
        [slots] = to_device([batch.columns[4]], self.device)
        return StepRecurrence(self.architecture.delta, self.recurrent, slots)

    def _decode_paged(self, batch: DecodeBatch) -> torch.Tensor:
        heads = self.architecture.heads
        lookups = [look(batch, heads // self.architecture.kv_heads) for look in (prompt_lookup, own_lookup)]
        arrays = [array for lookup in lookups for array in lookup.arrays]
        inputs, *moved = to_device([batch.columns[:3], *arrays], self.device)
        half = len(moved) // 2
        prompts, own = (
            flash_ops.DeviceLookup.of(lookup, tensors)
            for lookup, tensors in zip(lookups, (moved[:half], moved[half:]), strict=True)
        )

        def attend(index: int, qkv: torch.Tensor) -> torch.Tensor:
            keys, values = self.cache.keys[index], self.cache.values[index]
            return flash_ops.decode_attention(qkv[:, :heads], keys, values, prompts, own)

        return self._run_layers(inputs, attend, self._step_recurrence(batch))

    def _decode_dense(self, batch: DecodeBatch) -> torch.Tensor:
        inputs, tables, mask = to_device([batch.columns[:3], *batch.gathered_blocks()], self.device)

        def attend(index: int, qkv: torch.Tensor) -> torch.Tensor:
            keys, values = self.cache.keys[index], self.cache.values[index]
            return torch_ops.decode_attention(qkv[:, : self.architecture.heads], keys, values, tables, mask)

        return self._run_layers(inputs, attend, self._step_recurrence(batch))

    def _run_layers(
        self,
        inputs: torch.Tensor,
        attend: Callable[[int, torch.Tensor], torch.Tensor],
        recur: PromptRecurrence | StepRecurrence | None,
    ) -> torch.Tensor:
        """Returns the hidden states `[T, H]` after the last layer, before the norm.

        `inputs` `[3, T]`: tokens, positions, cache slots. `attend`: gets the number of a layer among those
        with attention, and its rotated queries, keys and values, which are in the cache, too. `recur`: runs
        the layers with Gated DeltaNet.
        """
        tokens, positions, slots = inputs
        x = self.weights.embedding[tokens]
        attention_layers, delta_layers = count(), count()
        for layer, delta in zip_longest(self.weights.layers, self.weights.deltas):
            if delta is not None and recur is not None:
                mixed = self._recur(x, layer, delta, partial(recur, next(delta_layers)))
            else:
                index = next(attention_layers)
                qkv, gate = self._project(x, layer, index, positions, slots)
                mixed = attend(index, qkv)
                mixed = mixed if gate is None else mixed * gate.sigmoid()
            x = self._finish_layer(x, mixed, layer)
        return x

    def _decode_native(self, batch: DecodeBatch) -> torch.Tensor:
        states: torch.Tensor = native_ops.KERNELS.decode(
            torch.from_numpy(batch.columns),
            torch.from_numpy(batch.prefix_tables),
            torch.from_numpy(batch.suffix_tables),
            self.weights.embedding,
            self._layer_tensors,
            self.weights.norm,
            self.cache.keys,
            self.cache.values,
            self._cos,
            self._sin,
            self.architecture.norm_eps,
        )
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits `[B, V]` of states `[B, H]`, in the model's dtype or, with a wide head, in
        float32.
        """
        self._prepare()
        if self._wide_head:
            return torch_ops.wide_linear(hidden, self.weights.head)
        return torch_ops.linear(hidden, self.weights.head, None)

    @property
    def logit_bytes(self) -> int:
        """Size of one logit in bytes."""
        return 4 if self._wide_head else self.cache.keys.element_size()

    def _project(
        self,
        x: torch.Tensor,
        layer: LayerWeights,
        index: int,
        positions: torch.Tensor,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns rotated queries, keys and values `[T, heads + 2 kv heads, D]`, and the gates `[T, heads ·
        D]` of the output, if the model has them; writes keys and values to the cache.
        """
        normed = self._norm(x, layer.input_norm)
        qkv = torch_ops.linear(normed, layer.qkv, layer.qkv_bias).view(len(x), -1, self.architecture.head_dim)
        gate = None
        if self.architecture.output_gate:  # each head has its queries, then its gates
            both = qkv[:, : 2 * self.architecture.heads]
            gate = both[:, 1::2].flatten(1)
            qkv = torch.cat((both[:, ::2], qkv[:, 2 * self.architecture.heads :]), 1)
        self._ops.rope_store(
            qkv,
            (self._scale(layer.q_norm), self._scale(layer.k_norm)),
            self.architecture.norm_eps,
            (self._cos, self._sin, positions),
            (self.cache.keys[index], self.cache.values[index], slots),
        )
        return qkv, gate

    def _recur(
        self,
        x: torch.Tensor,
        layer: LayerWeights,
        delta: DeltaWeights,
        recur: Callable[[torch.Tensor, DeltaWeights], torch.Tensor],
    ) -> torch.Tensor:
        """Returns the normed and gated output `[T, N · V]` of Gated DeltaNet."""
        assert self.architecture.delta is not None
        projected = torch_ops.linear(self._norm(x, layer.input_norm), layer.qkv, None)
        output = recur(projected, delta)
        first = self.architecture.delta.channels
        gate = projected[:, first : first + self.architecture.delta.values].reshape(output.shape)
        normed = torch_ops.rms_norm(output, delta.norm, self.architecture.norm_eps)
        return (normed * torch.nn.functional.silu(gate.float())).to(x.dtype).flatten(1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Returns the normed hidden states."""
        scale = self._scale(weight)
        assert scale is not None
        return self._ops.rms_norm(x, scale, self.architecture.norm_eps)

    def _scale(self, weight: torch.Tensor | None) -> torch.Tensor | None:
        """Returns what a norm multiplies by; the C++ kernels do not compute models whose norms add 1."""
        return 1 + weight.float() if weight is not None and self.architecture.offset_norms else weight

    def _finish_layer(self, x: torch.Tensor, attended: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        """Adds the output projection and the feed-forward to the hidden states."""
        x = x + torch_ops.linear(attended, layer.output, layer.output_bias)
        normed = self._norm(x, layer.mlp_norm)
        inner = self._ops.silu_mul(torch_ops.linear(normed, layer.gate_up, layer.gate_up_bias))
        return x + torch_ops.linear(inner, layer.down, layer.down_bias)


def _kernels_fit(architecture: Architecture, cache: KVCache) -> bool:
    """Returns whether the C++ kernels can run: on a CPU, and heads are read 16 elements at a time.

    They have neither gates nor recurrent states.
    """
    fits = architecture.head_dim % 16 == 0 and not architecture.output_gate
    return cache.keys.device.type == "cpu" and not cache.paged and fits
