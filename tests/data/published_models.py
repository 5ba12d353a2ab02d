"""Published models: the keys of their config.json that decide the shape, and their numbers of parameters.

The keys are those of huggingface.co/ORGANISATION/MODEL/blob/main/config.json, and the numbers those of the
models' pages: zai-org/GLM-4.7 (355B), GLM-4.5-Air (106B) and GLM-4.7-Flash (30B), GLM-5 and GLM-5.2
(744B), moonshotai/Kimi-K2-Instruct (1,026.4 billion in its files) and Moonlight-16B-A3B (15.96 billion),
MiniMaxAI/MiniMax-M2 (230B), and XiaomiMiMo/MiMo-7B-RL (7.833 billion, of which 0.211 billion are those of
the layer that predicts further tokens), Qwen/Qwen3-VL-8B-Instruct (8.767 billion) and Qwen/Qwen3.5-35B-A3B
(35B, of which 0.45 are the vision tower's; its config.json leaves most keys at their defaults). Layers that
predict further tokens are not counted.
"""

from typing import Any

_GLM = {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "head_dim": 128,
    "hidden_act": "silu",
    "n_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "vocab_size": 151552,
}
_DEEPSEEK = {
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "moe_layer_freq": 1,
    "n_group": 1,
    "norm_topk_prob": True,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_theta": 50000.0,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 163840,
}
_GLM_5: dict[str, Any] = {
    "model_type": "glm_moe_dsa",
    "attention_bias": False,
    "dtype": "bfloat16",
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "indexer_rope_interleave": True,
    "intermediate_size": 12288,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 78,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_interleave": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 256,
    "vocab_size": 154880,
}
GLM_5 = _GLM_5 | {
    "max_position_embeddings": 202752,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
}
GLM_52 = _GLM_5 | {
    "index_skip_topk_offset": 3,
    "index_topk_freq": 4,
    "index_topk_pattern": None,
    "max_position_embeddings": 1048576,
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
}
GLM_47 = _GLM | {
    "first_k_dense_replace": 3,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "num_hidden_layers": 92,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
}
GLM_45_AIR = _GLM | {
    "first_k_dense_replace": 1,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "num_hidden_layers": 46,
    "routed_scaling_factor": 1.0,
    "use_qk_norm": False,
}
GLM_47_FLASH = {
    "model_type": "glm4_moe_lite",
    "attention_bias": False,
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_attention_heads": 20,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 47,
    "num_key_value_heads": 20,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.8,
    "v_head_dim": 256,
    "vocab_size": 154880,
}
KIMI_K2 = _DEEPSEEK | {
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "routed_scaling_factor": 2.827,
}
MOONLIGHT = _DEEPSEEK | {
    "model_type": "deepseek_v3",
    "hidden_size": 2048,
    "intermediate_size": 11264,
    "max_position_embeddings": 8192,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "routed_scaling_factor": 2.446,
}
MINIMAX_M2 = {
    "model_type": "minimax_m2",
    "attn_type_list": [1] * 62,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "max_position_embeddings": 196608,
    "mtp_transformer_layers": 1,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "num_mtp_modules": 3,
    "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "rotary_dim": 64,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "use_mtp": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 200064,
}
MIMO_7B = {
    "model_type": "mimo",
    "attention_bias": True,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 640000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151680,
}
QWEN35_35B_A3B = {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 40,
        "vocab_size": 248320,
    },
}
QWEN3_VL_8B = {
    "model_type": "qwen3_vl",
    "image_token_id": 151655,
    "text_config": {
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_position_embeddings": 262144,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
            "rope_type": "default",
        },
        "rope_theta": 5000000,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": False,
    "video_token_id": 151656,
    "vision_config": {
        "deepstack_visual_indexes": [8, 16, 24],
        "depth": 27,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "in_channels": 3,
        "intermediate_size": 4304,
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 4096,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
}
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "GLM-4.7": (GLM_47, 355e9),
    "GLM-4.5-Air": (GLM_45_AIR, 106e9),
    "GLM-4.7-Flash": (GLM_47_FLASH, 30e9),
    "GLM-5": (GLM_5, 744e9),
    "GLM-5.2": (GLM_52, 744e9),
    "Kimi-K2": (KIMI_K2, 1026.4e9),
    "Moonlight-16B-A3B": (MOONLIGHT, 15.96e9),
    "MiniMax-M2": (MINIMAX_M2, 230e9),
    "MiMo-7B": (MIMO_7B, 7.622e9),
    "Qwen3-VL-8B": (QWEN3_VL_8B, 8.767e9),
    "Qwen3.5-35B-A3B": (QWEN35_35B_A3B, 34.66e9),
}


def _qwen3(**shape: Any) -> dict[str, Any]:
    """The keys that all Qwen3 models share, with those of one."""
    return {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
    } | shape


def _qwen3_moe(**shape: Any) -> dict[str, Any]:
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
    layers = {"decoder_sparse_step": 1, "intermediate_size": 6144, "mlp_only_layers": []}
    return _qwen3(model_type="qwen3_moe", num_key_value_heads=4, **experts, **layers) | shape


def _shape(hidden: int, layers: int, heads: int, intermediate: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }


TRAINED_OFTEN: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": _qwen3(**_shape(1024, 28, 16, 3072), tie_word_embeddings=True),
    "Qwen3-4B": _qwen3(**_shape(2560, 36, 32, 9728), tie_word_embeddings=True),
    "Qwen3-8B": _qwen3(**_shape(4096, 36, 32, 12288)),
    "Qwen3-14B": _qwen3(**_shape(5120, 40, 40, 17408)),
    "Qwen3-32B": _qwen3(**_shape(5120, 64, 64, 25600)),
    "Llama-3.3-70B": {
        "model_type": "llama",
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    }
    | _shape(8192, 80, 64, 28672),
    "Qwen3-30B-A3B": _qwen3_moe(
        hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, moe_intermediate_size=768
    ),
    "Qwen3-235B-A22B": _qwen3_moe(
        hidden_size=4096, num_hidden_layers=94, num_attention_heads=64, moe_intermediate_size=1536
    ),
}
"""Models that users of RL trainers start with, from 0.6 to 235 billion parameters: Qwen/NAME and, of Llama,
meta-llama/Llama-3.3-70B-Instruct.
"""
