"""Reads the architecture that a Hugging Face `config.json` declares, without torch.

The trainer, the native engine and `rlrun plan` all read it here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.models.attention_config import read_latent, read_rope, read_windows
from rlrun.models.config_defaults import refuse_nulls, with_family_defaults
from rlrun.models.experts_config import read_experts
from rlrun.models.json_files import read_json_object

FAMILIES = ("deepseek_v3", "gpt_oss", "llama", "qwen2", "qwen3", "qwen3_moe")
"""`model_type`s that rlrun loads, trains and exports."""


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
        return _architecture(with_family_defaults(config), where, with_biases=with_biases)
    except KeyError as missing:
        raise ValueError(f"{where} has no {missing}") from None
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{where} has a value of the wrong type: {error}") from None


def _architecture(config: Mapping[str, Any], where: str, *, with_biases: bool) -> Architecture:
    family = config.get("model_type")
    if family not in FAMILIES:
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
    return Architecture(
        family=family,
        vocab=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=heads if latent else config.get("num_key_value_heads") or heads,
        head_dim=latent.unrotated_dim + latent.rotated_dim if latent else head_dim,
        intermediate=config["intermediate_size"],
        norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
        tied=config["tie_word_embeddings"],
        rope=rope,
        qk_norm=family in ("qwen3", "qwen3_moe"),
        qkv_bias=family == "qwen2" or attention_bias,
        initializer_range=config["initializer_range"],
        dtype=weight_dtype(config),
        output_bias=attention_bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias")),
        experts=read_experts(config) if family in ("qwen3_moe", "deepseek_v3", "gpt_oss") else None,
        latent=latent,
        sinks=family == "gpt_oss",
        windows=read_windows(config) if family == "gpt_oss" else (),
    )


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
    if with_biases:
        refused -= {"attention_bias", "mlp_bias"}
    for key in sorted(refused):
        if config.get(key):
            raise ValueError(f"{key} = true in config.json is not supported for {family}")
    if config["hidden_act"] != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} in config.json is not supported; only 'silu'")
