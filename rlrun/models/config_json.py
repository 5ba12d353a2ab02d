"""The architecture that a Hugging Face `config.json` declares; needs no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.models.attention_config import read_latent, read_rope, read_windows
from rlrun.models.config_defaults import completed, refuse_nulls
from rlrun.models.experts_config import read_experts
from rlrun.models.json_files import read_table

FAMILIES = ("deepseek_v3", "gpt_oss", "llama", "qwen2", "qwen3", "qwen3_moe")
"""`model_type`s that load, train and export."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. ValueError where there is none, or where it isn't JSON."""
    path = folder / "config.json"
    try:
        return read_table(path)
    except FileNotFoundError:
        raise ValueError(
            f"{folder} is no model folder: it has no config.json (model.path must name an HF folder or id)"
        ) from None


def read_architecture(folder: Path) -> Architecture:
    """The architecture of a model folder; ValueError names what is missing, wrong or not supported."""
    return architecture(read_config(folder), f"{folder / 'config.json'}")


def architecture(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """The architecture a `config.json` declares; ValueError for what is missing or wrong in it, and for a
    family or feature that isn't supported.
    """
    try:
        return _architecture(completed(config), where)
    except KeyError as missing:
        raise ValueError(f"{where} has no {missing}") from None
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{where} has a value of a kind that its model cannot have: {error}") from None


def _architecture(config: Mapping[str, Any], where: str) -> Architecture:
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}, and others with "
            'model.implementation = "transformers"'
        )
    refuse_nulls(config, where)
    _refuse_variants(config)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = read_rope(config)
    latent = read_latent(config) if family == "deepseek_v3" else None
    head_dim = config.get("head_dim") or hidden // heads
    return Architecture(
        family=family,
        vocab=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=heads if latent else config.get("num_key_value_heads") or heads,
        head_dim=latent.plain + latent.rotated if latent else head_dim,
        intermediate=config["intermediate_size"],
        norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
        tied=config["tie_word_embeddings"],
        rope=rope,
        qk_norm=family in ("qwen3", "qwen3_moe"),
        qkv_bias=family in ("qwen2", "gpt_oss"),
        initializer_range=config["initializer_range"],
        dtype=weight_dtype(config),
        experts=read_experts(config) if family in ("qwen3_moe", "deepseek_v3", "gpt_oss") else None,
        latent=latent,
        sinks=family == "gpt_oss",
        windows=read_windows(config) if family == "gpt_oss" else (),
    )


def weight_dtype(config: Mapping[str, Any]) -> str:
    """Precision of the weights; of quantised ones, that which they are computed in."""
    named = config.get("dtype") or config.get("torch_dtype")
    return named or ("bfloat16" if config.get("quantization_config") else "float32")


def _refuse_variants(config: Mapping[str, Any]) -> None:
    """Options of these families that change the mathematics and that the trainer does not have."""
    biased = config["model_type"] == "gpt_oss"
    if biased and not config["attention_bias"]:
        raise ValueError("attention_bias = false in config.json is not supported for gpt_oss")
    for key in ("mlp_bias", "use_sliding_window", *(() if biased else ("attention_bias",))):
        if config.get(key):
            raise ValueError(f"{key} = true in config.json is not supported for {config['model_type']}")
    if config["hidden_act"] != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} in config.json is not supported; only 'silu'")
