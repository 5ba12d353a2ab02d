"""The values that transformers assumes for keys that a `config.json` leaves out, by family.

They are the defaults of transformers' configuration classes, and tests compare them. A key that is null is
not absent: for some keys the readers derive a value, as transformers does; they refuse every other null.
"""

from collections.abc import Mapping
from typing import Any

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys that different versions of a family use for the number of experts."""

_COMMON: Mapping[str, Any] = {
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

_DELTA_NET: Mapping[str, Any] = {
    "max_position_embeddings": 32768,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25,
}
_DELTA_EXPERTS: Mapping[str, Any] = {
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}

_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
    "qwen3_moe": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": (),
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "num_experts_per_tok": 8,
        "num_local_experts": 128,
    },
    "deepseek_v3": {
        "max_position_embeddings": 4096,
        "num_key_value_heads": 128,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rope_interleave": True,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
        "v_head_dim": 128,
    },
    "gpt_oss": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "attention_bias": True,
        "head_dim": 64,
        "num_experts_per_tok": 4,
        "num_local_experts": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    "qwen3_next": {
        **_DELTA_NET,
        **_DELTA_EXPERTS,
        "decoder_sparse_step": 1,
        "mlp_only_layers": (),
        "norm_topk_prob": True,
        "num_experts": 512,
        "num_experts_per_tok": 10,
    },
    "qwen3_5_text": {**_DELTA_NET, "num_key_value_heads": 4},
    "qwen3_5_moe_text": {
        **_DELTA_NET,
        **_DELTA_EXPERTS,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    },
}
TEXT_FAMILIES: Mapping[str, str] = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""`model_type`s of multimodal checkpoints whose text model is read, with the `model_type` of that model."""

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_MAY_BE_NULL = {
    "head_dim",
    "mlp_only_layers",
    "n_group",
    "num_key_value_heads",
    "num_local_experts",
    "q_lora_rank",
    "sliding_window",
    "topk_group",
}
"""Keys for which null has a meaning."""

_GPT_OSS_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def with_family_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a `config.json` with the defaults of its family; an unknown family adds none.

    The sizes of the matrices (vocabulary, width, layers, heads) have no default here: a file without them is
    damaged, and transformers' defaults would describe a different model.
    """
    config = text_config(config)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES:
        return dict(config)
    defaults = dict(_COMMON) | dict(_FAMILIES[family])
    if any(config.get(name) for name in EXPERT_COUNTS):
        defaults.pop("num_local_experts", None)
    if family == "gpt_oss" and not (config.get("rope_parameters") or config.get("rope_scaling")):
        defaults["rope_scaling"] = _GPT_OSS_ROPE
    return defaults | dict(config)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config of a multimodal checkpoint's text model; any other config as it is.

    Whether embedding and head are tied is a property of the whole checkpoint.
    """
    family, inner = config.get("model_type"), config.get("text_config")
    if not isinstance(family, str) or family not in TEXT_FAMILIES or not isinstance(inner, Mapping):
        return config
    shared = {key: config[key] for key in ("tie_word_embeddings", "quantization_config") if key in config}
    dtype = inner.get("dtype") or inner.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return dict(inner) | shared | {"model_type": TEXT_FAMILIES[family], "dtype": dtype}


def refuse_nulls(config: Mapping[str, Any], where: str = "config.json") -> None:
    """Raises ValueError if a key is null for which transformers does not accept null."""
    keys = {*_SIZES, *_COMMON, *_FAMILIES.get(str(config.get("model_type")), ())} - _MAY_BE_NULL
    if config.get("rope_parameters"):
        keys.discard("rope_theta")  # transformers 5 stores the base frequency there
    for key in sorted(keys & config.keys()):
        if config[key] is None:
            raise ValueError(
                f"{key} is null in {where}: give a value, or delete the key for its family's default"
            )
