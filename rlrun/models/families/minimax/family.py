"""MiniMax-M2: norms of queries and keys over all heads together, and DeepSeek's router."""

from dataclasses import replace

from rlrun.models.architecture import Architecture, ExpertNames, Experts
from rlrun.models.attention_config import rotary_factor, rotated_part
from rlrun.models.decoder_config import decoder
from rlrun.models.families.deepseek.family import refuse_other_routers
from rlrun.models.family import SPARSE, Config, Family, Support


def _read(config: Config) -> Architecture:
    model = decoder(config, partial_rope=True)
    factor = rotary_factor(config)
    if factor is None and config.get("rotary_dim"):
        factor = config["rotary_dim"] / config["head_dim"]
    return replace(
        model,
        qk_norm=True,
        joint_qk_norm=True,
        rotary_dim=rotated_part(model.head_dim, factor),
        experts=_read_experts(config),
    )


def _read_experts(config: Config) -> Experts:
    refuse_other_routers(config)
    return Experts(
        count=config.get("num_experts") or config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=config["intermediate_size"],
        normalize=True,
        score="sigmoid",
        layers=frozenset(range(config["num_hidden_layers"])),
    )


def _refuse_variants(config: Config) -> None:
    """Raises ValueError for layers that the published configs can describe and transformers ignores."""
    if config.get("use_qk_norm") is False or config.get("qk_norm_type", "per_layer") != "per_layer":
        raise ValueError(
            "use_qk_norm and qk_norm_type in config.json must be true and 'per_layer' for minimax_m2: other "
            "norms are not supported"
        )
    if any(kind != 1 for kind in config.get("attn_type_list") or ()):
        raise ValueError("attn_type_list in config.json has linear attention, which is not supported")


FAMILIES = (
    Family(
        model_type="minimax_m2",
        support=Support("MiniMax-M2", SPARSE, native_engine=True),
        defaults={
            "max_position_embeddings": 196608,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_experts_per_tok": 8,
            "num_local_experts": 256,
            "rope_theta": 5000000.0,
        },
        read=_read,
        own_layers="rlrun.models.families.minimax",
        refuse=_refuse_variants,
        expert_bias=True,
        # as Mixtral's checkpoints; transformers' modules, after which peft names adapters, have other names
        expert_names=ExpertNames("block_sparse_moe", "e_score_correction_bias", "w1", "w3", "w2"),
        adapts_experts=False,
    ),
)
