"""The values that transformers assumes for keys that a `config.json` leaves out, by family.

They are the defaults of transformers' configuration classes, and tests compare them. A key that is null is
not absent: for some keys the readers derive a value, as transformers does; they refuse every other null.
"""

from collections.abc import Mapping
from typing import Any

from rlrun.models.families import by_transformers
from rlrun.models.families.table import family_of

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys that different versions of a family use for the number of experts."""

COMMON: Mapping[str, Any] = {
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
"""Defaults that most families have; `Family.defaults` has what differs."""
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


def with_family_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a `config.json` with the defaults of its family; an unknown family adds none.

    The sizes of the matrices (vocabulary, width, layers, heads) have no default here: a file without them is
    damaged, and transformers' defaults would describe a different model.
    """
    config = text_config(config)
    family = family_of(config)
    if family.read is None:
        return {**by_transformers.SIZES.get(family.model_type, {}), **config}
    defaults = dict(COMMON) | dict(family.defaults)
    if any(config.get(name) for name in EXPERT_COUNTS):
        defaults.pop("num_local_experts", None)
    if family.default_rope and not (config.get("rope_parameters") or config.get("rope_scaling")):
        defaults["rope_scaling"] = family.default_rope
    return defaults | dict(config)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config of a multimodal checkpoint's text model; any other config as it is.

    Whether embedding and head are tied is a property of the whole checkpoint. Some published
    checkpoints have the keys of the text model beside those of the vision tower (`TextModel.may_be_flat`).
    """
    family, inner = family_of(config), config.get("text_config")
    if family.text is not None and family.text.may_be_flat and not inner:
        return dict(config) | {"model_type": family.text.model_type}
    if not isinstance(inner, Mapping):
        return config
    if family.text is not None:
        inner_family = family.text.model_type
    elif family.model_type in by_transformers.TEXT_FAMILIES:
        inner_family = inner.get("model_type", by_transformers.TEXT_FAMILIES[family.model_type])
    else:
        return config
    shared = {key: config[key] for key in ("tie_word_embeddings", "quantization_config") if key in config}
    dtype = inner.get("dtype") or inner.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return dict(inner) | shared | {"model_type": inner_family, "dtype": dtype}


def refuse_nulls(config: Mapping[str, Any], where: str = "config.json") -> None:
    """Raises ValueError if a key is null for which transformers does not accept null."""
    keys = {*_SIZES, *COMMON, *family_of(config).defaults} - _MAY_BE_NULL
    if config.get("rope_parameters"):
        keys.discard("rope_theta")  # transformers 5 stores the base frequency there
    for key in sorted(keys & config.keys()):
        if config[key] is None:
            raise ValueError(
                f"{key} is null in {where}: give a value, or delete the key for its family's default"
            )
