"""The forward passes of the native engine.

packed prompts ─▶ prefill ─┐
prompts to score ─▶ states ├─▶ normed hidden states ─▶ logits
one token per row ─▶ decode┘

There are three ways to compute them: C++ kernels on a CPU (`native_ops`), flash attention on a GPU
(`flash_ops`), and plain torch for everything else (`torch_ops`), such as float32 on a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from rlrun.models.architecture import Architecture, inexact_part
from rlrun.models.computation.rope_tables import rope_tables
from rlrun.runner.engines.native.model import flash_ops, native_ops, torch_ops
from rlrun.runner.engines.native.model.batches import DecodeBatch, Int32, Int64
from rlrun.runner.engines.native.model.cache import KVCache
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.engines.native.model.decoder_layers import (
    Attend,
    DecoderLayers,
    ForwardPass,
    Operations,
    OtherLayers,
)
from rlrun.runner.engines.native.model.device_copies import to_device
from rlrun.runner.engines.native.model.engine_parts import engine_parts
from rlrun.runner.engines.native.model.fused_weights import is_packable, pack_for_onednn
from rlrun.runner.engines.native.model.image_tower import ImageTower, PromptImages
from rlrun.runner.engines.native.model.layer_weights import ModelWeights, without_elements
from rlrun.runner.engines.native.model.page_lookups import continued_lookup, own_lookup, prompt_lookup
from rlrun.runner.engines.native.model.recurrent import PromptRecurrence, Recur, RecurrentStates
from rlrun.runner.engines.native.model.torch_ops import Scores

PADDING_WEIGHTS = 100_000_000
"""Padding rows times weights whose product costs about as much as oneDNN's code for a new batch size."""


@dataclass(frozen=True, slots=True)
class CachedPrefixes:
    """The beginnings of packed prompts that are in the cache already."""

    starts: Sequence[int]
    """How many tokens of each prompt are cached."""
    blocks: Sequence[Int32]
    """The cache blocks of each whole prompt."""
    recurrent: Sequence[RecurrentStates | None]
    """The recurrent state after each cached beginning; None where it is empty, and without recurrent
    layers."""


class PromptResults(NamedTuple):
    """What a pass over P prompts of T tokens together returns."""

    hidden: torch.Tensor
    """`[P, H]` normed hidden states of the prompts' last tokens."""
    recurrent: RecurrentStates | None
    """The recurrent states after the prompts; None without recurrent layers."""


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
        tower: ImageTower | None = None,
        exact: bool = False,
        layers: OtherLayers | None = None,
    ) -> None:
        """`length`: tokens of the longest sequence. `wide_head`: logits are computed in float32.

        `recurrent`: the slots for the rows' states; None without recurrent layers. `tower`: computes images.
        `exact`: log-probs equal those of a trainer with `true_on_policy`. `layers`: those of a family without
        layers of rlrun's own; None: the architecture describes the layers.
        """
        self.tower = tower
        self.architecture = architecture
        self.recurrent = recurrent
        self._wide_head = wide_head and cache.keys.dtype != torch.float32
        self.cache = cache
        self.device = cache.keys.device
        self.flash = cache.paged
        """Attention is flash attention over pages."""
        self.native = self.device.type == "cpu" and not self.flash and native_ops.load()
        """The C++ kernels draw tokens; where they fit the model, they also compute its layers, without
        experts. Products and attention of prompts are theirs only where they are in order."""
        if exact:
            _check_exactness(architecture, native=self.native)
        own = layers is None
        fits = own and self.native and _kernels_fit(architecture)
        self._decodes_natively = fits and architecture.experts is None
        self._in_order = own and self.native and (exact or native_ops.packs(cache.keys.dtype))
        self._prompt_ops = native_ops if fits and self._in_order else torch_ops
        self.packs = own and (self._in_order or is_packable(weights.norm))
        """Matrices are packed copies, so that the tensors of a checkpoint are not kept."""
        ops: Operations = native_ops if fits else flash_ops if self.flash else torch_ops
        tables = rope_tables(architecture.rope, architecture.rotated_dim, length)
        self._cos, self._sin = (table.to(self.device) for table in tables)
        self.parts = engine_parts(architecture)
        self._other = layers
        self._layers = layers or DecoderLayers(self.parts, ops, (self._cos, self._sin))
        self._layer_tensors: list[torch.Tensor | None] = []
        self._num_weights = sum(prod(shape) for shape in weight_shapes(architecture).values())
        self.replace_weights(weights)

    def padded(self, rows: int) -> int:
        """Returns how many rows a pass with `rows` rows should have, padding included.

        On a CPU oneDNN generates code for every new batch size, in about 10 ms. A small model is faster with
        few sizes, each at most a quarter larger than the one before; a large model is faster without padding.
        """
        generates_code = self.device.type == "cpu" and not self._in_order
        if rows <= 4 or self.flash or not generates_code:
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
        if self._other is not None:
            self._other.release()
        self._layer_tensors.clear()
        self._prepared = True

    def _prepare(self) -> None:
        """Packs new weights, and lists them as the C++ kernels take them: field after field, layer after
        layer.
        """
        if not self._prepared:
            if self._other is not None:
                self._other.load(self.weights.named)
                if self._wide_head:
                    self.weights = replace(self.weights, head=self.weights.head.float())
            elif self._in_order:
                self.weights = native_ops.pack(self.weights)
            else:
                self.weights = pack_for_onednn(self.weights, wide_head=self._wide_head)
            self._layer_tensors = [
                getattr(layer, field.name) for layer in self.weights.layers for field in fields(layer)
            ]
            self._prepared = True

    def prefill(
        self,
        packed: Int64,
        lengths: Sequence[int],
        chosen: list[torch.Tensor] | None = None,
        images: Sequence[PromptImages] = (),
        cached: CachedPrefixes | None = None,
    ) -> PromptResults:
        """Runs packed prompts of the given lengths (`batches.packed_prompts`).

        `chosen`: gets the experts `[T', K]` of each sparse layer, for the prompts' tokens and padding.
        `images`: those of each prompt; empty: no prompt has images. `cached`: the beginnings of the prompts
        that `packed` and `lengths` leave out; None: there are none.
        """
        recurrence = self._recurrence(lengths, cached, keeps_states=True)
        x, ends = self._run_prompts(packed, lengths, recurrence, chosen, images, cached=cached)
        states = recurrence.states if recurrence else None
        return PromptResults(self._norm(x[ends[1:].long() - 1]), states)

    def states(
        self, packed: Int64, lengths: Sequence[int], images: Sequence[PromptImages] = ()
    ) -> torch.Tensor:
        """Runs packed prompts and returns the states `[T, H]` of all tokens; slots of 0 cache nothing."""
        recurrence = self._recurrence(lengths, None, keeps_states=False)
        x, _ = self._run_prompts(packed, lengths, recurrence, None, images)
        return self._norm(x)

    def _recurrence(
        self, lengths: Sequence[int], cached: CachedPrefixes | None, *, keeps_states: bool
    ) -> PromptRecurrence | None:
        before = cached.recurrent if cached else ()
        return self.parts.prompt_recurrence(lengths, before, keeps_states=keeps_states)

    def _run_prompts(
        self,
        packed: Int64,
        lengths: Sequence[int],
        recurrence: PromptRecurrence | None,
        chosen: list[torch.Tensor] | None,
        images: Sequence[PromptImages],
        *,
        cached: CachedPrefixes | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the hidden states `[T, H]` after the last layer, before the norm, and the prompts' ends."""
        self._prepare()
        kv_heads = self.architecture.cached_heads
        all_ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        inputs, ends = to_device([packed, all_ends], self.device)
        continued = self._continued_attention(lengths, cached) if cached else None

        def attend(index: int, qkv: torch.Tensor, *scores: Scores) -> torch.Tensor:
            if continued is not None:
                return continued(index, qkv, *scores)
            heads = qkv.shape[1] - 2 * kv_heads
            if self.flash:
                return flash_ops.prefill_attention(qkv, heads, kv_heads, ends, max(lengths))
            return self._prompt_ops.prefill_attention(qkv, heads, kv_heads, list(lengths), *scores)

        shown = None
        if any(prompt.patches for prompt in images):
            assert self.tower is not None, "Engine.check refuses images without a tower"
            shown = self.tower.show(images, lengths, packed.shape[1])
        return self._layers.run(
            self.weights, self.cache, ForwardPass(inputs, attend, recurrence, chosen, shown)
        ), ends

    def _continued_attention(self, lengths: Sequence[int], cached: CachedPrefixes) -> Attend:
        """Returns the attention of a pass over prompts whose beginnings are in the cache."""
        heads, kv_heads = self.architecture.heads, self.architecture.cached_heads
        if self.flash:
            lookup = continued_lookup(lengths, cached.starts, cached.blocks, self.cache.block)
            pages = flash_ops.DeviceLookup.of(lookup, to_device(lookup.arrays, self.device))
            return lambda index, qkv, *_: flash_ops.continued_attention(
                qkv[:, :heads], self.cache.keys[index], self.cache.values[index], pages
            )
        tables = [torch.from_numpy(blocks.astype(np.int64)).to(self.device) for blocks in cached.blocks]
        ops: Any = self._prompt_ops

        def attend(index: int, qkv: torch.Tensor, *scores: Scores) -> torch.Tensor:
            cache = self.cache.keys[index], self.cache.values[index]
            heads = qkv.shape[1] - 2 * kv_heads
            pieces = qkv[: sum(lengths)].split(list(lengths))
            attended = [
                ops.continued_attention(piece[:, :heads], cache, table, start, *scores).flatten(1)
                if start
                else ops.prefill_attention(piece, heads, kv_heads, [len(piece)], *scores)
                for piece, table, start in zip(pieces, tables, cached.starts, strict=True)
            ]
            return pad(torch.cat(attended), (0, 0, 0, len(qkv) - sum(lengths)))

        return attend

    def decode(self, batch: DecodeBatch, chosen: list[torch.Tensor] | None = None) -> torch.Tensor:
        """Runs one token of every row; returns their states `[M, H]`.

        `chosen`: gets the experts `[M, K]` of each sparse layer.
        """
        self._prepare()
        if self._decodes_natively:
            return self._decode_native(batch)
        decode = self._decode_paged if self.flash else self._decode_dense
        return self._norm(decode(batch, chosen))

    def _step_recurrence(self, batch: DecodeBatch) -> Recur | None:
        if self.recurrent is None:
            return None
        [slots] = to_device([batch.columns[4]], self.device)
        return self.parts.step_recurrence(self.recurrent, slots)

    def _decode_paged(self, batch: DecodeBatch, chosen: list[torch.Tensor] | None) -> torch.Tensor:
        heads = self.architecture.heads
        lookups = [look(batch, heads // self.architecture.kv_heads) for look in (prompt_lookup, own_lookup)]
        arrays = [array for lookup in lookups for array in lookup.arrays]
        inputs, *moved = to_device([batch.columns[:3], *arrays], self.device)
        half = len(moved) // 2
        prompts, own = (
            flash_ops.DeviceLookup.of(lookup, tensors)
            for lookup, tensors in zip(lookups, (moved[:half], moved[half:]), strict=True)
        )

        def attend(index: int, qkv: torch.Tensor, *scores: Scores) -> torch.Tensor:
            keys, values = self.cache.keys[index], self.cache.values[index]
            return flash_ops.decode_attention(qkv[:, :heads], keys, values, prompts, own)

        recurrence = self._step_recurrence(batch)
        return self._layers.run(self.weights, self.cache, ForwardPass(inputs, attend, recurrence, chosen))

    def _decode_dense(self, batch: DecodeBatch, chosen: list[torch.Tensor] | None) -> torch.Tensor:
        inputs, tables, distances = to_device([batch.columns[:3], *batch.gathered_blocks()], self.device)

        def attend(index: int, qkv: torch.Tensor, *scores: Scores) -> torch.Tensor:
            cache = self.cache.keys[index], self.cache.values[index]
            queries = qkv[:, : -2 * self.architecture.cached_heads]
            return torch_ops.decode_attention(queries, cache, tables, distances, *scores)

        recurrence = self._step_recurrence(batch)
        return self._layers.run(self.weights, self.cache, ForwardPass(inputs, attend, recurrence, chosen))

    def _decode_native(self, batch: DecodeBatch) -> torch.Tensor:
        states: torch.Tensor = native_ops.operators.decode(
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
        linear = torch_ops.wide_linear if self._wide_head else torch_ops.linear
        logits = linear(hidden, self.weights.head)
        scale = self.architecture.logit_scale
        return logits if scale == 1 else logits * scale

    @property
    def logit_bytes(self) -> int:
        """Size of one logit in bytes."""
        return 4 if self._wide_head else self.cache.keys.element_size()

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the hidden states after the last norm."""
        return self._layers.norm(x, self.weights.norm)


def _check_exactness(architecture: Architecture, *, native: bool) -> None:
    """Raises ValueError where the operators do not compute the model as a trainer does."""
    reason = inexact_part(architecture)
    if reason is None and not native:
        reason = "the native engine computes exactly on a CPU with a C++ compiler only (its log says more)"
    if reason is not None:
        raise ValueError(f"true_on_policy: {reason}")


def _kernels_fit(architecture: Architecture) -> bool:
    """Returns whether the C++ kernels compute the model's layers.

    They read heads 16 elements at a time, rotate whole heads, multiply by a norm's weights as they are
    stored, and compute no family's own layers.
    """
    if architecture.own_layers is not None or architecture.rotary_dim or architecture.offset_norms:
        return False
    return architecture.head_dim % 16 == 0
