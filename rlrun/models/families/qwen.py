"""Qwen2, Qwen3 and Qwen3-MoE: Llamas with biases (Qwen2), or norms of queries and keys (Qwen3)."""

from dataclasses import replace

from rlrun.models.architecture import Architecture, Experts
from rlrun.models.decoder_config import decoder
from rlrun.models.family import DENSE, SPARSE, Config, Family, ServerFacts, Support

QWEN2_DEFAULTS: Config = {"max_position_embeddings": 32768, "num_key_value_heads": 32}


def read_qwen2(config: Config) -> Architecture:
    """Reads a decoder whose projections to queries, keys and values always have biases.

    `attention_bias` does not concern its output projection.
    """
    return replace(decoder(config), qkv_bias=True, output_bias=False)


def read_qwen3(config: Config) -> Architecture:
    """Reads a decoder whose queries and keys always have norms."""
    return replace(decoder(config), qk_norm=True)


def _read_qwen3_moe(config: Config) -> Architecture:
    return replace(read_qwen3(config), experts=read_softmax_experts(config))


def read_softmax_experts(config: Config) -> Experts:
    """Reads experts that are chosen by a softmax over all of them."""
    dense_layers = set(config.get("mlp_only_layers") or ())
    sparse_step = config.get("decoder_sparse_step", 1)
    return Experts(
        count=config.get("num_experts") or config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=config["moe_intermediate_size"],
        # Qwen3.5 has no such option
        normalize=config.get("norm_topk_prob", True),
        layers=frozenset(
            layer
            for layer in range(config["num_hidden_layers"])
            if layer not in dense_layers and (layer + 1) % sparse_step == 0
        ),
    )


FAMILIES = (
    Family(
        model_type="qwen2",
        support=Support("Qwen2, Qwen2.5", DENSE, native_engine=True),
        defaults=QWEN2_DEFAULTS,
        read=read_qwen2,
        trains_attention_bias=True,
        server=ServerFacts(adapters=True, layout=True),
    ),
    Family(
        model_type="qwen3",
        support=Support("Qwen3", DENSE, native_engine=True, sglang=True),
        defaults={"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
        read=read_qwen3,
        server=ServerFacts(adapters=True, layout=True, on_policy_target=True),
    ),
    Family(
        model_type="qwen3_moe",
        support=Support("Qwen3-MoE", SPARSE, native_engine=True, sglang=True),
        defaults={
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "decoder_sparse_step": 1,
            "mlp_only_layers": (),
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
            "num_experts_per_tok": 8,
            "num_local_experts": 128,
        },
        read=_read_qwen3_moe,
        server=ServerFacts(adapters=True, layout=True),
    ),
)
