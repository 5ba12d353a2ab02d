"""GLM-4.5 to 4.7: grouped-query attention, or latent attention (GLM-4.7-Flash), and DeepSeek's experts."""

from dataclasses import replace

from rlrun.models.architecture import Architecture
from rlrun.models.decoder_config import decoder
from rlrun.models.families.deepseek.family import OWN_LAYERS, next_layer, read_deepseek, read_sigmoid_experts
from rlrun.models.family import SPARSE, Config, Family, Support

_EXPERTS: Config = {
    "first_k_dense_replace": 1,
    "n_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "topk_group": 1,
}


def _read(config: Config) -> Architecture:
    """Reads GLM-4.5 to 4.7; `attention_bias` does not concern the attention's output projection."""
    model = decoder(config, partial_rope=True)
    return replace(model, output_bias=False, experts=read_sigmoid_experts(config))


FAMILIES = (
    Family(
        model_type="glm4_moe",
        support=Support("GLM-4.5, 4.6, 4.7 and GLM-4.5-Air", SPARSE, native_engine=True, sglang=True),
        defaults={
            **_EXPERTS,
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
        read=_read,
        trains_attention_bias=True,
        expert_bias=True,
        mtp=next_layer,
        has_layers_behind=True,
    ),
    Family(
        model_type="glm4_moe_lite",
        support=Support("GLM-4.7-Flash", SPARSE, native_engine=True),
        defaults={
            **_EXPERTS,
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
        read=read_deepseek,
        own_layers=OWN_LAYERS,
        expert_bias=True,
        mtp=next_layer,
        has_layers_behind=True,
    ),
)
