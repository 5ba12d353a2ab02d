"""What config.json of a Qwen3 or Llama checkpoint says, checked and in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import completed, refuse_nulls
from rlrun.models.json_files import read_table
from rlrun.runner.prompts.end_tokens import end_token_ids

FAMILIES = ("qwen3", "llama")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder of the Qwen3 or Llama family."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_length: int
    """Positions the model was made for (`max_position_embeddings`)."""
    tied: bool
    """The output head is the embedding."""
    qk_norm: bool
    attention_bias: bool
    """q, k, v and the attention's output projection have biases."""
    mlp_bias: bool
    rope: Mapping[str, Any]
    """`rope_theta`, `rope_type` and the scaling's own keys."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end a sample."""

    @property
    def kv_size(self) -> int:
        """Width of keys (and of values) of one token in one layer."""
        return self.num_kv_heads * self.head_dim


def read_config(folder: str | Path) -> ModelConfig:
    """Read what a Hugging Face folder says of its model, and of the tokens that end a sample.

    Raises ValueError for a family or an option the native engine does not compute.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{path} does not exist: engine models are folders in Hugging Face format")
    raw = completed(read_table(path))
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"{path}: model_type {family!r}; the native engine runs {' and '.join(FAMILIES)}")
    refuse_nulls(raw, str(path))
    if raw["hidden_act"] != "silu":
        raise ValueError(f"{path}: hidden_act {raw['hidden_act']!r}; the native engine computes silu")
    rope = _rope(raw)
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) not in {None, 1}:
        raise ValueError(f"{path}: partial_rotary_factor; the native engine rotates heads whole")
    if raw.get("use_sliding_window"):
        raise ValueError(f"{path}: use_sliding_window is true; the native engine has full attention only")
    heads = raw["num_attention_heads"]
    return ModelConfig(
        family=family,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        norm_eps=raw["rms_norm_eps"],
        max_length=raw["max_position_embeddings"],
        tied=bool(raw["tie_word_embeddings"]),
        qk_norm=family == "qwen3",
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        rope=rope,
        eos_token_ids=end_token_ids(Path(folder)),
    )


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the engine needs, by Hugging Face name, with its shape."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        for name, width in (("q", queries), ("k", config.kv_size), ("v", config.kv_size)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (width, hidden)
            if config.attention_bias:
                shapes[f"{prefix}self_attn.{name}_proj.bias"] = (width,)
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, queries)
        if config.attention_bias:
            shapes[prefix + "self_attn.o_proj.bias"] = (hidden,)
        if config.qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for name, shape in (("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = shape
            if config.mlp_bias:
                shapes[f"{prefix}mlp.{name}_proj.bias"] = shape[:1]
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Both spellings: `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling` (before)."""
    scaling = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    scaling.setdefault("rope_theta", raw["rope_theta"])
    scaling["rope_type"] = scaling.get("rope_type") or scaling.get("type") or "default"
    original = raw.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    scaling.setdefault("original_max_position_embeddings", original)
    return scaling
