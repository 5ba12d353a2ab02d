"""DeepSeek-V3.2 and GLM-5: latent attention to the keys that an indexer chooses (DeepSeek sparse attention).

In GLM-5.2 several layers share the choice of one indexer. Everything else is DeepSeek-V3's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rlrun.models.architecture import Architecture, Indexer
from rlrun.models.families.deepseek.family import DEFAULTS, read_deepseek
from rlrun.models.family import SPARSE, Config, Family, Support

_OWN_LAYERS = "rlrun.models.families.dsa"
_INDEXER: Config = {"index_head_dim": 128, "index_topk": 2048, "num_nextn_predict_layers": 0}
KEY_NORM_EPS = 1e-6
"""Epsilon of the norm of index keys, which no config declares."""
_KINDS = {"F": "full", "S": "shared"}
"""What the letters of `index_topk_pattern` mean."""


def _read_deepseek_v32(config: Config) -> Architecture:
    return _with_indexer(config, range(config["num_hidden_layers"]), interleaved=False)


def _read_glm(config: Config) -> Architecture:
    kinds = _indexer_types(config)
    return _with_indexer(
        config, [layer for layer, kind in enumerate(kinds) if kind == "full"], interleaved=True
    )


def _with_indexer(config: Config, layers: Sequence[int], *, interleaved: bool) -> Architecture:
    """Returns the architecture with an indexer in some layers; transformers reads no `rope_interleave`, and
    always rotates neighbouring dimensions of latent attention.
    """
    model = read_deepseek({**config, "rope_interleave": True})
    assert model.latent is not None
    if model.latent.query_rank is None:
        raise ValueError(f"q_lora_rank is null in config.json, and the indexer of {model.family} reads it")
    indexer = Indexer(
        heads=config["index_n_heads"],
        head_dim=config["index_head_dim"],
        top_k=config["index_topk"],
        interleaved=interleaved,
        layers=frozenset(layers),
    )
    for key in ("index_n_heads", "index_topk"):
        if config[key] < 1:
            raise ValueError(f"{key} = {config[key]} in config.json must be at least 1")
    if indexer.head_dim < model.latent.rotated_dim:
        raise ValueError(
            f"index_head_dim = {indexer.head_dim} in config.json must be at least "
            f"qk_rope_head_dim = {model.latent.rotated_dim}, the dimensions that are rotated"
        )
    return replace(model, indexer=indexer)


def _indexer_types(config: Config) -> Sequence[str]:
    """Returns `full` or `shared` for each layer, as transformers' GlmMoeDsaConfig does."""
    layers, kinds = config["num_hidden_layers"], config.get("indexer_types")
    if kinds is None and (pattern := config.get("index_topk_pattern")) is not None:
        kinds = [_KINDS.get(letter, letter) for letter in pattern]
    if kinds is None:
        frequency, offset = max(config["index_topk_freq"], 1), config["index_skip_topk_offset"]
        kinds = ["shared" if max(layer - offset + 1, 0) % frequency else "full" for layer in range(layers)]
    if len(kinds) != layers or not set(_KINDS.values()).issuperset(kinds) or "full" not in kinds[:1]:
        raise ValueError(
            f"indexer_types in config.json must be a list of {layers} values, one per layer, each full or "
            "shared, of which the first is full"
        )
    return list(kinds)


def _refuse_other_rotations(*, interleaved: bool) -> Callable[[Config], None]:
    """Returns a check of keys of published configs that transformers does not read."""

    def refuse(config: Config) -> None:
        for key, computed in (("rope_interleave", True), ("indexer_rope_interleave", interleaved)):
            if config.get(key, computed) != computed:
                raise ValueError(
                    f"{key} = {config[key]!r} in config.json is not supported for {config['model_type']}; "
                    f"only {computed!r} is"
                )

    return refuse


def _without(defaults: Config, *names: str) -> Config:
    return {name: value for name, value in defaults.items() if name not in names}


_DEEPSEEK = {**_without(DEFAULTS, "rope_interleave"), **_INDEXER}

FAMILIES = (
    Family(
        model_type="deepseek_v32",
        support=Support("DeepSeek-V3.2", SPARSE, native_engine=True),
        defaults={**_DEEPSEEK, "index_n_heads": 64, "max_position_embeddings": 163840},
        read=_read_deepseek_v32,
        refuse=_refuse_other_rotations(interleaved=False),
        own_layers=_OWN_LAYERS,
        expert_bias=True,
        has_layers_behind=True,
    ),
    Family(
        model_type="glm_moe_dsa",
        support=Support("GLM-5, GLM-5.2", SPARSE, native_engine=True),
        defaults={
            **_DEEPSEEK,
            "index_n_heads": 32,
            "index_skip_topk_offset": 2,
            "index_topk_freq": 1,
            "max_position_embeddings": 202752,
            "n_group": 1,
            "num_key_value_heads": 64,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "rms_norm_eps": 1e-5,
            "topk_group": 1,
            "v_head_dim": 256,
        },
        read=_read_glm,
        refuse=_refuse_other_rotations(interleaved=True),
        own_layers=_OWN_LAYERS,
        expert_bias=True,
        has_layers_behind=True,
    ),
)
