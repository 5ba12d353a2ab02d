"""The engine's operations in plain torch, for GPUs and for CPUs without a compiler.

`native_ops` computes the same faster on a CPU. Both compute in float32 and round once, at the end of an
operation.
"""

from typing import NamedTuple

import torch
from torch.nn import functional

from rlrun.runner.engines.native.model.cache import BLOCK
from rlrun.runner.engines.native.model.key_choice import KeyChoice, SharedChoice


class Scores(NamedTuple):
    """How a layer turns queries and keys into scores, where this differs from a Llama's."""

    scale: float | None = None
    """Multiplies the products of queries and keys; None: 1 / √D."""
    window: int | None = None
    """How many tokens a query sees, its own included; None: all up to its own."""
    sinks: torch.Tensor | None = None
    """`[heads]` logit of each head's attention sink, to which a query attends without a value."""
    choice: KeyChoice | SharedChoice | None = None
    """The keys that queries see; the last heads of queries and keys are an indexer's."""

    def hides(self, tokens: int) -> bool:
        """Returns whether some query of a sequence of this many tokens does not see its beginning."""
        return self.window is not None and tokens > self.window

    def seen(self, distances: torch.Tensor) -> torch.Tensor:
        """Returns which keys are seen at these distances from the query; negative ones are not seen."""
        seen = distances >= 0
        return seen if self.window is None else seen & (distances < self.window)


PLAIN = Scores()
KeysValues = tuple[torch.Tensor, torch.Tensor]
"""The keys and values of a layer in the cache (`KVCache`)."""
Rotation = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Tables of cosines and sines `[length, D / 2]`, and positions `[T]`."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Returns x · weightᵀ + bias; the weight may be packed, in panels (`native_ops.pack`) or for oneDNN
    (`fused_weights.pack_for_onednn`).
    """
    if weight.dim() == 3:
        return in_panels(x, weight, bias)
    if weight.is_mkldnn:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return functional.linear(x, weight, bias)


def in_panels(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, wide: bool = False
) -> torch.Tensor:
    """Returns x · weightᵀ + bias for a weight in panels; `wide`: in float32."""
    product: torch.Tensor = torch.ops.rlrun.linear(x, weight, bias, wide)
    return product


def wide_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns x · weightᵀ in float32 for a half-precision x; on a CPU the weight is in panels, or
    `pack_for_onednn` made it float32.
    """
    if weight.dim() == 3:
        return in_panels(x, weight, None, wide=True)
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return linear(x.float(), weight, None)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns x / rms(x) · weight over the last dimension."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Returns silu(gate) · up, `[T, F]`, where `gate_up` `[T, 2F]` has gate and up side by side."""
    gate, up = gate_up.float().chunk(2, -1)
    return (functional.silu(gate) * up).to(gate_up.dtype)


def rope_store(
    qkv: torch.Tensor,
    norms: tuple[torch.Tensor | None, torch.Tensor | None],
    eps: float,
    rotation: Rotation,
    cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Normalises and rotates queries and keys in place, and writes keys and values to the cache.

    `qkv` `[T, heads + 2 kv heads, D]`; `norms`: weights for queries and keys, or None; `cache`: keys
    `[N, kv heads, D, 16]`, values `[N, kv heads, 16, D]` and slots `[T]`, slot s being token s % 16 of block
    s // 16.
    """
    rotate(qkv, cache[0].shape[1], norms, eps, rotation)
    store(qkv, cache)


def store(qkv: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    """Writes the keys and values of `[T, heads + 2 kv heads, D]` to the cache, as in `rope_store`."""
    keys, values, slots = cache
    kv_heads = keys.shape[1]
    blocks, offsets = slots // BLOCK, slots % BLOCK
    keys[blocks, :, :, offsets] = qkv[:, -2 * kv_heads : -kv_heads]
    values[blocks, :, offsets] = qkv[:, -kv_heads:]


def rotate(
    qkv: torch.Tensor,
    kv_heads: int,
    norms: tuple[torch.Tensor | None, torch.Tensor | None],
    eps: float,
    rotation: Rotation,
) -> None:
    """Normalises and rotates queries and keys in place, as in `rope_store`.

    The tables may be narrower than a head, whose last dimensions are then not rotated.
    """
    heads = qkv.shape[1] - 2 * kv_heads
    cosines, sines, positions = rotation
    cos, sin = cosines[positions, None], sines[positions, None]
    rotated = 2 * cosines.shape[-1]
    for part, weight in zip((qkv[:, :heads], qkv[:, heads:-kv_heads]), norms, strict=True):
        wide = part.float()
        if weight is not None:
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
        first, second = wide[..., :rotated].chunk(2, -1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        part.copy_(torch.cat((*turned, wide[..., rotated:]), -1))


def prefill_attention(
    qkv: torch.Tensor, heads: int, kv_heads: int, lengths: list[int], scores: Scores = PLAIN
) -> torch.Tensor:
    """Returns causal attention within each packed sequence, `[T, heads · D]`; zeros for padding."""
    out = qkv.new_zeros(qkv.shape[0], heads, qkv.shape[2])
    start = 0
    for length in lengths:
        packed = qkv[start : start + length].transpose(0, 1)[None]
        queries, keys, values = packed.split((heads, kv_heads, kv_heads), 1)
        seen = _seen(scores, 0, length, qkv.device) if scores.hides(length) else None
        attended = _attend(queries, (keys, values), seen, scores)[0].transpose(0, 1)
        out[start : start + length, : attended.shape[1]] = attended
        start += length
    return out[:, : attended.shape[1]].flatten(1)


def _attend(
    queries: torch.Tensor, cached: KeysValues, seen: torch.Tensor | None, scores: Scores
) -> torch.Tensor:
    """Returns `[B, heads, Q, D]`; `seen` broadcasts to `[B, 1, Q, K]`, and is None for causal attention."""
    keys, values = cached
    if scores.choice is not None:
        queries, keys, values, seen = scores.choice.heads(queries, keys, values, seen)
    if scores.sinks is not None:
        return _attend_with_sinks(queries, cached, seen, scores)
    return functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=seen,
        is_causal=seen is None,
        scale=scores.scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )


def _attend_with_sinks(
    queries: torch.Tensor, cached: KeysValues, seen: torch.Tensor | None, scores: Scores
) -> torch.Tensor:
    """Attends to one key more, whose product with every query is zero, and whose value is zero."""
    assert scores.sinks is not None
    keys, values = (functional.pad(part, (0, 0, 0, 1)) for part in cached)
    rows, columns = queries.shape[2], keys.shape[2]
    if seen is None:
        seen = torch.ones(rows, columns - 1, dtype=torch.bool, device=queries.device).tril()
    bias = queries.new_zeros(len(queries), queries.shape[1], rows, columns)
    bias[..., :-1].masked_fill_(~seen, float("-inf"))
    bias[..., -1] = scores.sinks.to(bias.dtype)[:, None]
    return functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=bias,
        scale=scores.scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )


def _seen(scores: Scores, start: int, total: int, device: torch.device) -> torch.Tensor:
    """Returns which of a sequence's tokens the queries from `start` on see, `[total - start, total]`."""
    positions = torch.arange(total, device=device)
    return scores.seen(positions[start:, None] - positions)


def continued_attention(
    queries: torch.Tensor, cache: KeysValues, table: torch.Tensor, start: int, scores: Scores = PLAIN
) -> torch.Tensor:
    """Attends from the tokens of one prompt `[R, heads, D]`, which follow `start` cached ones, to all tokens
    up to their own; returns `[R, heads, D]`.

    `table`: the cache blocks of the whole prompt, whose own keys and values are in the cache, too.
    """
    keys, values = cache
    kv_heads, dim = keys.shape[1], keys.shape[2]
    total = start + len(queries)
    row_keys = keys[table].permute(1, 0, 3, 2).reshape(kv_heads, -1, dim)[:, :total]
    row_values = values[table].transpose(0, 1).reshape(kv_heads, -1, dim)[:, :total]
    seen = _seen(scores, start, total, queries.device)
    attended = _attend(queries.transpose(0, 1)[None], (row_keys[None], row_values[None]), seen, scores)
    return attended[0].transpose(0, 1)


def decode_attention(
    queries: torch.Tensor,
    cache: KeysValues,
    tables: torch.Tensor,
    distances: torch.Tensor,
    scores: Scores = PLAIN,
) -> torch.Tensor:
    """Attends from one token per row `[M, heads, D]` to the blocks of its table; returns `[M, heads · D]`.

    `tables`, `distances`: `DecodeBatch.gathered_blocks`.
    """
    keys, values = cache
    kv_heads, dim = keys.shape[1], keys.shape[2]
    row_keys = keys[tables].permute(0, 2, 1, 4, 3).reshape(len(tables), kv_heads, -1, dim)
    row_values = values[tables].transpose(1, 2).reshape(len(tables), kv_heads, -1, dim)
    seen = scores.seen(distances)[:, None, None]
    attended = _attend(queries[:, :, None], (row_keys, row_values), seen, scores)
    return attended[:, :, 0].flatten(1)
