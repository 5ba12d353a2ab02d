"""What a `config.json` says of attention: positions, latent vectors, windows; needs no torch."""

import math
from collections.abc import Mapping
from typing import Any

from rlrun.models.architecture import LatentAttention, Rope

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def read_rope(config: Mapping[str, Any]) -> Rope:
    """`rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of the versions before.

    Configs come with the defaults of their family (rlrun.models.config_defaults).
    """
    values = _rope_values(config)
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_type {kind!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    if values.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in {None, 1}:
        raise ValueError("partial_rotary_factor in config.json is not supported: heads are rotated whole")
    theta = values.get("rope_theta") or config["rope_theta"]
    if kind == "default":
        return Rope(theta, interleaved=_interleaved(config))
    if kind == "linear":
        return Rope(theta, kind, values["factor"])
    if kind == "yarn":
        return _yarn(theta, values, config)
    return Rope(
        theta,
        kind,
        values["factor"],
        values["low_freq_factor"],
        values["high_freq_factor"],
        _original_length(values, config),
    )


def _rope_values(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """As transformers, which takes the older spelling where a file has both."""
    values: Mapping[str, Any] = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return values


def _original_length(values: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Positions that the model was trained for before it was stretched."""
    length: int = (
        config.get("original_max_position_embeddings")
        or values.get("original_max_position_embeddings")
        or config["max_position_embeddings"]
    )
    return length


def _yarn(theta: float, values: Mapping[str, Any], config: Mapping[str, Any]) -> Rope:
    """YaRN (https://arxiv.org/abs/2309.00071), with the defaults that transformers gives it."""
    factor = values["factor"]
    attention = values.get("attention_factor")
    if attention is None and values.get("mscale") and values.get("mscale_all_dim"):
        attention = yarn_scale(factor, values["mscale"]) / yarn_scale(factor, values["mscale_all_dim"])
    return Rope(
        theta,
        "yarn",
        factor,
        original_max_positions=_original_length(values, config),
        beta_fast=values.get("beta_fast") or 32.0,
        beta_slow=values.get("beta_slow") or 1.0,
        truncate=values.get("truncate", True),
        attention_factor=yarn_scale(factor, 1.0) if attention is None else attention,
        interleaved=_interleaved(config),
    )


def yarn_scale(factor: float, scale: float) -> float:
    """How much larger attention's logits become by stretching `factor` times."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _interleaved(config: Mapping[str, Any]) -> bool:
    return config["model_type"] == "deepseek_v3" and bool(config["rope_interleave"])


def read_latent(config: Mapping[str, Any]) -> LatentAttention:
    """DeepSeek's, by the names that its `config.json` has for them."""
    values = _rope_values(config)
    return LatentAttention(
        query_rank=config["q_lora_rank"],
        rank=config["kv_lora_rank"],
        plain=config["qk_nope_head_dim"],
        rotated=config["qk_rope_head_dim"],
        value=config["v_head_dim"],
        scale_factor=values.get("mscale_all_dim", 0.0) or 0.0,
    )


def read_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """gpt-oss: every other layer, beginning with the first, unless `layer_types` says otherwise."""
    layers = config["num_hidden_layers"]
    kinds = config.get("layer_types") or [
        "full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)
    ]
    if len(kinds) != layers or not {"full_attention", "sliding_attention"}.issuperset(kinds):
        raise ValueError(
            f"layer_types in config.json must be full_attention or sliding_attention {layers} times"
        )
    return tuple(config["sliding_window"] if kind == "sliding_attention" else None for kind in kinds)
