"""Reads the architecture that a Hugging Face `config.json` declares, without torch.

The trainer, the native engine and `rlrun plan` all read it here.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture, Experts
from rlrun.models.attention_config import (
    DELTA_FAMILIES,
    read_delta_net,
    read_latent,
    read_rope,
    read_rotary_dim,
    read_windows,
)
from rlrun.models.config_defaults import TEXT_FAMILIES, refuse_nulls, with_family_defaults
from rlrun.models.experts_config import read_experts
from rlrun.models.json_files import read_json_object

FAMILIES = (
    "deepseek_v3",
    "gpt_oss",
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
)
"""`model_type`s that rlrun loads, trains and exports."""


_TEXT_MODELS = frozenset(FAMILIES) - TEXT_FAMILIES.keys()
_EXPERT_FAMILIES = ("qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_next", "qwen3_5_moe_text")


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the contents of a folder's `config.json`; raises ValueError if it is missing or invalid."""
    path = folder / "config.json"
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise ValueError(
            f"{folder} is not a model folder: it has no config.json; name a Hugging Face folder or id"
        ) from None


def read_architecture(folder: Path, *, with_biases: bool = False) -> Architecture:
    """Returns the architecture of a model folder, as `architecture` does."""
    return architecture(read_config(folder), f"{folder / 'config.json'}", with_biases=with_biases)


def architecture(
    config: Mapping[str, Any], where: str = "config.json", *, with_biases: bool = False
) -> Architecture:
    """Returns the architecture that a `config.json` declares.

    Raises ValueError for missing or wrong values, and for families and features that are not supported.
    `with_biases` accepts `attention_bias` and `mlp_bias`, which the native engine computes and the trainer
    does not.
    """
    try:
        if config.get("model_type") in TEXT_FAMILIES and not config.get("text_config"):
            raise KeyError("text_config")
        model = _architecture(with_family_defaults(config), where, with_biases=with_biases)
        if config["model_type"] in TEXT_FAMILIES:
            return replace(model, family=config["model_type"], prefix="model.language_model.")
        return model
    except KeyError as missing:
        raise ValueError(f"{where} has no {missing}") from None
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{where} has a value of the wrong type: {error}") from None


def _architecture(config: Mapping[str, Any], where: str, *, with_biases: bool) -> Architecture:
    family = config.get("model_type")
    if family not in _TEXT_MODELS:
        raise ValueError(
            f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}, and others with "
            'model.implementation = "transformers"'
        )
    refuse_nulls(config, where)
    _refuse_variants(config, with_biases=with_biases)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = read_rope(config)
    latent = read_latent(config) if family == "deepseek_v3" else None
    head_dim = config.get("head_dim") or hidden // heads
    attention_bias = bool(config.get("attention_bias"))
    has_delta_net = family in DELTA_FAMILIES
    experts = read_experts(config) if family in _EXPERT_FAMILIES else None
    return Architecture(
        family=family,
        vocab=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=heads if latent else config.get("num_key_value_heads") or heads,
        head_dim=latent.unrotated_dim + latent.rotated_dim if latent else head_dim,
        intermediate=_dense_width(config, experts),
        norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
        tied=config["tie_word_embeddings"],
        rope=rope,
        qk_norm=family in ("qwen3", "qwen3_moe") or has_delta_net,
        qkv_bias=family == "qwen2" or attention_bias,
        initializer_range=config["initializer_range"],
        dtype=weight_dtype(config),
        output_bias=attention_bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias")),
        experts=experts,
        latent=latent,
        delta=read_delta_net(config) if has_delta_net else None,
        output_gate=has_delta_net,
        offset_norms=has_delta_net,
        rotary_dim=read_rotary_dim(config, head_dim) if has_delta_net else None,
        sinks=family == "gpt_oss",
        windows=read_windows(config) if family == "gpt_oss" else (),
    )


def _dense_width(config: Mapping[str, Any], experts: Experts | None) -> int:
    """Returns the inner width of dense feed-forwards. Qwen3.5's MoE has none but its shared experts."""
    if config["model_type"] == "qwen3_5_moe_text":
        assert experts is not None
        return experts.shared
    width: int = config["intermediate_size"]
    return width


def weight_dtype(config: Mapping[str, Any]) -> str:
    """Returns the precision of the weights; for quantised weights, the one that they are computed in."""
    declared = config.get("dtype") or config.get("torch_dtype")
    return declared or ("bfloat16" if config.get("quantization_config") else "float32")


def _refuse_variants(config: Mapping[str, Any], *, with_biases: bool) -> None:
    """Raises ValueError for options that change the model's mathematics and that nothing here computes."""
    family = config["model_type"]
    if family == "gpt_oss" and not config["attention_bias"]:
        raise ValueError("attention_bias = false in config.json is not supported for gpt_oss")
    refused = {"mlp_bias", "use_sliding_window", "attention_bias"}
    if family == "gpt_oss":
        refused.remove("attention_bias")
    if with_biases and family not in DELTA_FAMILIES:
        refused -= {"attention_bias", "mlp_bias"}
    for key in sorted(refused):
        if config.get(key):
            raise ValueError(f"{key} = true in config.json is not supported for {family}")
    if config["hidden_act"] != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} in config.json is not supported; only 'silu'")
