"""DeepSeek-V3, DeepSeek-R1 and Moonlight, and what Kimi-K2 and GLM share with them.

That is latent attention, a router with sigmoids and a bias, and a layer that predicts the token after the
next one.
"""

from collections.abc import Mapping
from dataclasses import replace

from rlrun.models.architecture import Architecture, Experts, MtpLayer
from rlrun.models.attention_config import read_latent
from rlrun.models.decoder_config import decoder
from rlrun.models.family import SPARSE, Config, Family, Support

OWN_LAYERS = "rlrun.models.families.deepseek"
"""The package with the layers of latent attention."""
LATENT_NORM_EPS = 1e-6
"""Epsilon of the norms of latent vectors, which differs from that of the other norms."""
DEFAULTS: Config = {
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
_ROUTER_KEYS: Mapping[str, object] = {
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
}
"""Keys of published configs that transformers does not read, with the only value that is computed."""


def read_deepseek(config: Config) -> Architecture:
    """Reads a decoder with latent attention and DeepSeek's experts."""
    model, latent = decoder(config), read_latent(config)
    return replace(
        model,
        rope=replace(model.rope, interleaved=bool(config["rope_interleave"])),
        kv_heads=model.heads,
        head_dim=latent.unrotated_dim + latent.rotated_dim,
        latent=latent,
        experts=read_sigmoid_experts(config),
    )


def read_sigmoid_experts(config: Config) -> Experts:
    """Reads experts that are chosen by a sigmoid each, beside those that every token passes through."""
    refuse_other_routers(config)
    intermediate = config["moe_intermediate_size"]
    return Experts(
        count=config.get("n_routed_experts") or config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=intermediate,
        normalize=config["norm_topk_prob"],
        score="sigmoid",
        scale=config["routed_scaling_factor"],
        groups=config.get("n_group") or 1,
        chosen_groups=config.get("topk_group") or 1,
        shared=intermediate * config["n_shared_experts"],
        layers=_sparse_layers(config),
    )


def _sparse_layers(config: Config) -> frozenset[int]:
    """Returns the sparse layers: those that `mlp_layer_types` lists, else all but the first few."""
    layers = config["num_hidden_layers"]
    if (kinds := config.get("mlp_layer_types")) is None:
        return frozenset(range(config["first_k_dense_replace"], layers))
    if len(kinds) != layers or not {"dense", "sparse"}.issuperset(kinds):
        raise ValueError(
            f"mlp_layer_types in config.json must be a list of {layers} values, one per layer, each dense or "
            "sparse"
        )
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sparse")


def refuse_other_routers(config: Config) -> None:
    """Raises ValueError for routers and layers that config.json describes and transformers would ignore."""
    for key, computed in _ROUTER_KEYS.items():
        if config.get(key, computed) not in (None, computed):
            raise ValueError(
                f"{key} = {config[key]!r} in config.json is not supported for {config['model_type']}; only "
                f"{computed!r} is"
            )


def next_layer(layers: int) -> MtpLayer:
    """Returns the MTP layer as SGLang 0.5.23 reads it (models/deepseek_nextn.py, models/glm4_moe_nextn.py,
    models/glm4_moe_lite_nextn.py).
    """
    return MtpLayer(f"model.layers.{layers}.", "hnorm", "enorm", "eh_proj", "shared_head.norm")


FAMILIES = (
    Family(
        model_type="deepseek_v3",
        support=Support("DeepSeek-V3, DeepSeek-R1, Moonlight", SPARSE, native_engine=True),
        defaults=DEFAULTS,
        read=read_deepseek,
        own_layers=OWN_LAYERS,
        expert_bias=True,
        mtp=next_layer,
        has_layers_behind=True,
    ),
)
