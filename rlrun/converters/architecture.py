"""The shape of a decoder as its Hugging Face `config.json` declares it; needs no torch."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAMILIES = ("deepseek_v3", "gpt_oss", "llama", "qwen2", "qwen3", "qwen3_moe")
"""`model_type`s that load, train and export."""

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: base frequency and how it is stretched."""

    theta: float
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    """yarn: wavelengths that turn more often than this in the original length are kept, and those that turn
    less often than `beta_slow` are stretched by `factor`."""
    beta_slow: float = 1.0
    truncate: bool = True
    """yarn: these limits are rounded to whole dimensions."""
    attention_factor: float = 1.0
    """yarn: cosines and sines are multiplied by it."""
    interleaved: bool = False
    """Neighbouring dimensions are rotated, not halves (DeepSeek)."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Keys and values from a latent vector, queries too where `query_rank` is given (DeepSeek's MLA)."""

    query_rank: int | None
    rank: int
    """Of keys and values."""
    plain: int
    """Dimensions of a head's queries and keys without position."""
    rotated: int
    """Those with one; the keys of all heads share it."""
    value: int
    """Dimensions of a head's values."""
    scale_factor: float
    """yarn: `mscale_all_dim`; attention is scaled by (0.1 · this · ln factor + 1)²."""


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gpt-oss's activation: gate · sigmoid(`alpha` · gate) · (up + 1), the gate held below `limit` and up
    within it on both sides. Gate and up are the even and odd outputs of one matrix.
    """

    limit: float
    alpha: float


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts in a sparse layer."""

    count: int
    per_token: int
    intermediate: int
    normalize: bool
    """Routing weights of the chosen experts sum to one."""
    score: str = "softmax"
    """How router logits become weights: softmax or sigmoid."""
    scale: float = 1.0
    """The weights are multiplied by it."""
    groups: int = 1
    """Experts lie in so many groups, of which only the best `chosen_groups` take part for a token."""
    chosen_groups: int = 1
    shared: int = 0
    """Width of the feed-forward that every token passes through."""
    correction_bias: bool = False
    """A fixed bias by expert decides with the weights which ones are chosen."""
    layers: frozenset[int] = frozenset()
    """Which layers are sparse; the others have a dense feed-forward."""
    clamped: ClampedGate | None = None
    """Instead of SwiGLU; experts and router then have biases, and a layer's experts are stored as one."""


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
    latent: LatentAttention | None = None
    sinks: bool = False
    """Each head has a logit of a key that is not there, and the output projection a bias (gpt-oss)."""
    stored: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of the checkpoint's tensors, where transformers computes the model (`foreign`); of
    others they follow from the rest.
    """
    windows: tuple[int | None, ...] = ()
    """How many tokens each layer's attention sees, itself included; None: all. Empty: all in every layer."""

    @property
    def rotated(self) -> int:
        """Dimensions of a head that are rotated by position."""
        return self.latent.rotated if self.latent else self.head_dim

    def window(self, layer: int) -> int | None:
        """How many tokens a layer's attention sees; None: all."""
        return self.windows[layer] if self.windows else None


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. ValueError where there is none, or where it isn't JSON."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(
            f"{folder} is no model folder: it has no config.json (model.path must name an HF folder or id)"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no table of settings")
    return config


def read_architecture(folder: Path) -> Architecture:
    """The architecture of a model folder; ValueError names what is missing, wrong or not supported."""
    return architecture(read_config(folder), f"{folder / 'config.json'}")


def architecture(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """The architecture a `config.json` declares; ValueError for what is missing or wrong in it, and for a
    family or feature that isn't supported.
    """
    try:
        return _architecture(config)
    except KeyError as missing:
        raise ValueError(f"{where} has no {missing}") from None
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{where} has a value of a kind that its model cannot have: {error}") from None


def _architecture(config: Mapping[str, Any]) -> Architecture:
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}, and others with "
            'model.implementation = "transformers"'
        )
    _refuse_variants(config)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = _rope(config)
    latent = _latent(config) if family == "deepseek_v3" else None
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
        tied=config.get("tie_word_embeddings", False),
        rope=rope,
        qk_norm=family in ("qwen3", "qwen3_moe"),
        qkv_bias=family in ("qwen2", "gpt_oss"),
        initializer_range=config.get("initializer_range", 0.02),
        dtype=weight_dtype(config),
        experts=_experts(config) if family in ("qwen3_moe", "deepseek_v3", "gpt_oss") else None,
        latent=latent,
        sinks=family == "gpt_oss",
        windows=_windows(config) if family == "gpt_oss" else (),
    )


def weight_dtype(config: Mapping[str, Any]) -> str:
    """Precision of the weights; of quantised ones, that which they are computed in."""
    named = config.get("dtype") or config.get("torch_dtype")
    return named or ("bfloat16" if config.get("quantization_config") else "float32")


def _refuse_variants(config: Mapping[str, Any]) -> None:
    """Options of these families that change the mathematics and that the trainer does not have."""
    biased = config["model_type"] == "gpt_oss"
    if biased and not config.get("attention_bias", True):
        raise ValueError("attention_bias = false in config.json is not supported for gpt_oss")
    for key in ("mlp_bias", "use_sliding_window", *(() if biased else ("attention_bias",))):
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
        values["original_max_position_embeddings"],
    )


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
        original_max_positions=values.get("original_max_position_embeddings")
        or config["max_position_embeddings"],
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
    return config["model_type"] == "deepseek_v3" and bool(config.get("rope_interleave", True))


def _latent(config: Mapping[str, Any]) -> LatentAttention:
    values = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return LatentAttention(
        query_rank=config.get("q_lora_rank"),
        rank=config["kv_lora_rank"],
        plain=config["qk_nope_head_dim"],
        rotated=config["qk_rope_head_dim"],
        value=config["v_head_dim"],
        scale_factor=values.get("mscale_all_dim", 0.0) or 0.0,
    )


def _windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
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


def _experts(config: Mapping[str, Any]) -> Experts:
    if config["model_type"] == "deepseek_v3":
        return _deepseek_experts(config)
    if config["model_type"] == "gpt_oss":
        return _gpt_oss_experts(config)
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


def _deepseek_experts(config: Mapping[str, Any]) -> Experts:
    count = config.get("n_routed_experts") or config["num_local_experts"]
    intermediate = config["moe_intermediate_size"]
    return Experts(
        count=count,
        per_token=config["num_experts_per_tok"],
        intermediate=intermediate,
        normalize=config.get("norm_topk_prob", True),
        score="sigmoid",
        scale=config.get("routed_scaling_factor", 1.0),
        groups=config.get("n_group") or 1,
        chosen_groups=config.get("topk_group") or 1,
        shared=intermediate * config["n_shared_experts"],
        correction_bias=True,
        layers=frozenset(range(config["first_k_dense_replace"], config["num_hidden_layers"])),
    )


def _gpt_oss_experts(config: Mapping[str, Any]) -> Experts:
    """A softmax over the logits of the chosen experts alone is one over all of them, normalised."""
    return Experts(
        count=config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=config["intermediate_size"],
        normalize=True,
        layers=frozenset(range(config["num_hidden_layers"])),
        clamped=ClampedGate(config.get("swiglu_limit", 7.0), config.get("swiglu_alpha", 1.702)),
    )
