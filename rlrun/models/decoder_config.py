"""Reads the `config.json` of a Llama, from which the reading of every family starts, without torch."""

from collections.abc import Mapping
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.models.attention_config import read_rope, read_rotary_dim


def decoder(
    config: Mapping[str, Any], *, partial_rope: bool = False, intermediate: int | None = None
) -> Architecture:
    """Returns the architecture of a decoder with grouped-query attention and SwiGLU feed-forwards.

    `config` includes the defaults of its family. `partial_rope`: RoPE may rotate a part of each head.
    `intermediate`: the inner width of dense feed-forwards, of families that do not declare it.
    """
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = read_rope(config, partial=partial_rope)
    head_dim = config.get("head_dim") or hidden // heads
    attention_bias = bool(config.get("attention_bias"))
    return Architecture(
        family=config["model_type"],
        vocab=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=config["intermediate_size"] if intermediate is None else intermediate,
        norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
        tied=config["tie_word_embeddings"],
        rope=rope,
        qk_norm=bool(config.get("use_qk_norm")),
        qkv_bias=attention_bias,
        initializer_range=config["initializer_range"],
        dtype=weight_dtype(config),
        output_bias=attention_bias,
        rotary_dim=read_rotary_dim(config, head_dim) if partial_rope else None,
        mtp_layers=config.get("num_nextn_predict_layers") or 0,
    )


def weight_dtype(config: Mapping[str, Any]) -> str:
    """Returns the precision of the weights; for quantised weights, the one that they are computed in."""
    declared = config.get("dtype") or config.get("torch_dtype")
    if declared and not isinstance(declared, str):
        raise ValueError(f"dtype is {declared!r} in config.json: it must be a name, such as bfloat16")
    return declared or ("bfloat16" if quantisation(config) else "float32")


def quantisation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns how a config.json describes quantised weights, as a whole or for its text model; empty if it
    does not. Raises ValueError if the description is not a table.
    """
    inner = config.get("text_config")
    settings = config.get("quantization_config") or (
        inner.get("quantization_config") if isinstance(inner, Mapping) else None
    )
    if settings and not isinstance(settings, Mapping):
        raise ValueError(
            f"quantization_config in config.json is {settings!r}, which is not a table of settings"
        )
    return settings or {}


def packed_groups(settings: Mapping[str, Any]) -> list[object]:
    """Returns the `group_size` of each group of modules that quantised weights describe in `config_groups`;
    None for a group without any.
    """
    groups = settings.get("config_groups")
    weights = [
        group.get("weights") if isinstance(group, Mapping) else None
        for group in (groups.values() if isinstance(groups, Mapping) else ())
    ]
    return [numbers.get("group_size") if isinstance(numbers, Mapping) else None for numbers in weights]
