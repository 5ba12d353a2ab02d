"""The defaults of transformers' configuration classes, by family.

Kimi-K2 and MiMo come with classes of their own, which have the defaults of DeepSeek-V3 and Qwen2.
"""

from collections.abc import Mapping
from typing import Any

COMMON: Mapping[str, Any] = {
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

_DEEPSEEK: Mapping[str, Any] = {
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
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_interleave": True,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
    "v_head_dim": 128,
}
_GLM_EXPERTS: Mapping[str, Any] = {
    "first_k_dense_replace": 1,
    "n_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "topk_group": 1,
}

FAMILY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "mimo": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
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
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm4_moe_lite": {
        **_GLM_EXPERTS,
        "max_position_embeddings": 202752,
        "num_key_value_heads": 20,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 1536,
        "num_experts_per_tok": 4,
        "num_local_experts": 64,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "rope_interleave": True,
        "routed_scaling_factor": 1.8,
        "v_head_dim": 256,
    },
    "glm4_moe": {
        **_GLM_EXPERTS,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8,
        "num_local_experts": 128,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 1.0,
        "use_qk_norm": False,
    },
    "minimax_m2": {
        "max_position_embeddings": 196608,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
        "rope_theta": 5000000.0,
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
    "qwen2_5_vl_text": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
    },
    "qwen3_vl_text": {
        "max_position_embeddings": 128000,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "rope_theta": 500000.0,
    },
}
