"""The shape of a decoder as its Hugging Face `config.json` declares it; needs no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""`model_type`s that load, train and export."""

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: base frequency and how it is stretched."""

    theta: float
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts in a sparse layer."""

    count: int
    per_token: int
    intermediate: int
    normalize: bool
    """Routing weights of the chosen experts sum to one."""
    layers: frozenset[int]
    """Which layers are sparse; the others have a dense feed-forward."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A pre-norm decoder with grouped-query attention and SwiGLU."""

    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    max_positions: int
    tied: bool
    """Embedding and head share one matrix."""
    rope: Rope
    qk_norm: bool
    """RMSNorm on queries and keys before RoPE (Qwen3)."""
    qkv_bias: bool
    """Queries, keys and values have biases (Qwen2)."""
    initializer_range: float
    dtype: str
    """Precision of the stored weights: float32, bfloat16 or float16."""
    experts: Experts | None = None


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. ValueError where there is none, or where it isn't JSON."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(
            f"{folder} is no model folder: it has no config.json (model.path must name an HF folder or id)"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    return config


def read_architecture(folder: Path) -> Architecture:
    """The architecture of a model folder; ValueError names what is missing or not supported."""
    try:
        return architecture(read_config(folder))
    except KeyError as missing:
        raise ValueError(f"{folder / 'config.json'} has no {missing}") from None


def architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture a `config.json` declares; ValueError for a family or feature that isn't supported."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}")
    _refuse_variants(config)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Architecture(
        family=family,
        vocab=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
        tied=config.get("tie_word_embeddings", False),
        rope=_rope(config),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        qkv_bias=family == "qwen2",
        initializer_range=config.get("initializer_range", 0.02),
        dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
        experts=_experts(config) if family == "qwen3_moe" else None,
    )


def _refuse_variants(config: Mapping[str, Any]) -> None:
    """Options of these families that change the mathematics and that the trainer does not have."""
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(key):
            raise ValueError(f"{key} = true in config.json is not supported for {config['model_type']}")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} in config.json is not supported; only 'silu'")


def _rope(config: Mapping[str, Any]) -> Rope:
    """`rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of the versions before."""
    values = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_type {kind!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    theta = values.get("rope_theta") or config.get("rope_theta", 10000.0)
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, values["factor"])
    return Rope(
        theta,
        kind,
        values["factor"],
        values["low_freq_factor"],
        values["high_freq_factor"],
        values["original_max_position_embeddings"],
    )


def _experts(config: Mapping[str, Any]) -> Experts:
    count = config.get("num_experts") or config["num_local_experts"]
    dense = set(config.get("mlp_only_layers") or ())
    every = config.get("decoder_sparse_step", 1)
    return Experts(
        count=count,
        per_token=config["num_experts_per_tok"],
        intermediate=config["moe_intermediate_size"],
        normalize=config.get("norm_topk_prob", False),
        layers=frozenset(
            layer
            for layer in range(config["num_hidden_layers"])
            if layer not in dense and (layer + 1) % every == 0
        ),
    )
