"""Reads what a `config.json` declares about attention, without torch: RoPE, latent attention and windows."""

import math
from collections.abc import Mapping
from typing import Any

from rlrun.models.architecture import DeltaNet, LatentAttention, Rope
from rlrun.models.checked_values import check_numbers

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_MAX_PAIRS = 1 << 16


def read_rope(config: Mapping[str, Any], *, partial: bool) -> Rope:
    """Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (earlier versions).

    `config` includes the defaults of its family (`rlrun.models.config_defaults`). `partial`: a part of each
    head may be rotated.
    """
    values = _rope_values(config)
    check_numbers(values, "config.json")
    rope_type = values.get("rope_type") or values.get("type") or "default"
    rope_type = "default" if rope_type == "mrope" else rope_type
    if rope_type not in ROPE_TYPES:
        raise ValueError(f"rope_type {rope_type!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    if not partial and rotary_factor(config) not in {None, 1}:
        raise ValueError(
            "partial_rotary_factor in config.json is not supported: RoPE always rotates whole heads"
        )
    theta = values.get("rope_theta") or config["rope_theta"]
    if rope_type == "default":
        return Rope(theta, axes=_read_axes(values))
    if "mrope_section" in values:
        raise ValueError(f"rope_type {rope_type!r} is not supported together with mrope_section")
    if rope_type == "linear":
        return Rope(theta, rope_type, values["factor"])
    if rope_type == "yarn":
        return _read_yarn(theta, values, config)
    return Rope(
        theta,
        rope_type,
        values["factor"],
        values["low_freq_factor"],
        values["high_freq_factor"],
        _original_max_positions(values, config),
    )


def _rope_values(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the table of RoPE's settings; like transformers, prefers the older key where a file has
    both.
    """
    values: Mapping[str, Any] = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return values


def _read_axes(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns which position each pair of dimensions turns by (`Rope.axes`).

    `mrope_section` has the numbers of pairs of time, height and width. They follow each other; interleaved,
    they take turns until height and width have all of theirs.
    """
    sections = values.get("mrope_section")
    if not sections:
        return ()
    if not all(type(pairs) is int and 0 <= pairs <= _MAX_PAIRS for pairs in sections):
        raise ValueError(f"mrope_section in config.json is {sections!r}; it must hold numbers of pairs")
    if not values.get("mrope_interleaved"):
        return tuple(axis for axis, pairs in enumerate(sections) for _ in range(pairs))
    turns = [pair % 3 for pair in range(sum(sections))]
    return tuple(axis if pair < 3 * sections[axis] else 0 for pair, axis in enumerate(turns))


def _original_max_positions(values: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Returns how many positions the model was trained on before its context was extended."""
    positions: int = (
        config.get("original_max_position_embeddings")
        or values.get("original_max_position_embeddings")
        or config["max_position_embeddings"]
    )
    return positions


def _read_yarn(theta: float, values: Mapping[str, Any], config: Mapping[str, Any]) -> Rope:
    """Reads YaRN's settings (https://arxiv.org/abs/2309.00071), with the same defaults as transformers."""
    factor = values["factor"]
    attention_factor = values.get("attention_factor")
    if attention_factor is None and values.get("mscale") and values.get("mscale_all_dim"):
        attention_factor = yarn_scale(factor, values["mscale"]) / yarn_scale(factor, values["mscale_all_dim"])
    return Rope(
        theta,
        "yarn",
        factor,
        original_max_positions=_original_max_positions(values, config),
        beta_fast=values.get("beta_fast") or 32.0,
        beta_slow=values.get("beta_slow") or 1.0,
        truncate=values.get("truncate", True),
        attention_factor=yarn_scale(factor, 1.0) if attention_factor is None else attention_factor,
    )


def yarn_scale(factor: float, scale: float) -> float:
    """Returns YaRN's multiplier of cosines and sines for a context that is `factor` times longer."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_latent(config: Mapping[str, Any]) -> LatentAttention:
    """Reads the sizes of latent attention."""
    values = _rope_values(config)
    return LatentAttention(
        query_rank=config["q_lora_rank"],
        kv_rank=config["kv_lora_rank"],
        unrotated_dim=config["qk_nope_head_dim"],
        rotated_dim=config["qk_rope_head_dim"],
        value_dim=config["v_head_dim"],
        scale_factor=values.get("mscale_all_dim", 0.0) or 0.0,
    )


def read_rotary_dim(config: Mapping[str, Any], head_dim: int) -> int | None:
    """Returns how many dimensions of each head RoPE rotates; None: all."""
    return rotated_part(head_dim, rotary_factor(config))


def rotated_part(head_dim: int, factor: float | None) -> int | None:
    """Returns how many dimensions of a head are a share of `factor`; None: all."""
    return None if factor in {None, 1} else int(head_dim * factor)


def rotary_factor(config: Mapping[str, Any]) -> Any:
    """Returns the share of each head that a `config.json` has rotated; None if it does not say."""
    return _rope_values(config).get("partial_rotary_factor", config.get("partial_rotary_factor"))


def read_delta_net(config: Mapping[str, Any], *, by_head: bool) -> DeltaNet | None:
    """Reads the sizes of Gated DeltaNet and the layers that have it; None without such layers.

    Without `layer_types` every `full_attention_interval`-th layer has attention. `by_head`: as in `DeltaNet`.
    """
    layers, interval = config["num_hidden_layers"], config["full_attention_interval"]
    layer_types = config.get("layer_types") or [
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)
    ]
    check_layer_types(layer_types, layers, ("full_attention", "linear_attention"))
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if value_heads % key_heads:
        raise ValueError(
            f"linear_num_value_heads = {value_heads} in config.json must be a multiple of "
            f"linear_num_key_heads = {key_heads}"
        )
    delta = DeltaNet(
        layers=frozenset(i for i, layer_type in enumerate(layer_types) if layer_type == "linear_attention"),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=config["linear_key_head_dim"],
        value_dim=config["linear_value_head_dim"],
        taps=config["linear_conv_kernel_dim"],
        by_head=by_head,
    )
    return delta if delta.layers else None


def attention_interval(config: Mapping[str, Any]) -> int | None:
    """Returns n if every n-th layer has attention and all others have Gated DeltaNet; None otherwise."""
    delta = read_delta_net(config, by_head=False)
    layers = range(config["num_hidden_layers"])
    attention = [layer for layer in layers if delta is None or layer not in delta.layers]
    interval = attention[0] + 1 if attention else len(layers) + 1
    return interval if attention == list(layers)[interval - 1 :: interval] else None


def check_layer_types(layer_types: Any, layers: int, accepted: tuple[str, str]) -> None:
    """Raises ValueError unless `layer_types` has one of two values for each layer."""
    if len(layer_types) != layers or not set(accepted).issuperset(layer_types):
        raise ValueError(
            f"layer_types in config.json must be a list of {layers} values, one per layer, each "
            + " or ".join(accepted)
        )
