"""Reads the architecture that a Hugging Face `config.json` declares, without torch.

The trainer, the native engine and `rlrun plan` all read it here.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture, Experts
from rlrun.models.attention_config import (
    DELTA_FAMILIES,
    LATENT_FAMILIES,
    read_delta_net,
    read_latent,
    read_rope,
    read_rotary_dim,
    read_windows,
)
from rlrun.models.checked_numbers import check_numbers
from rlrun.models.config_defaults import TEXT_FAMILIES, refuse_nulls, with_family_defaults
from rlrun.models.experts_config import read_experts
from rlrun.models.families import NATIVE
from rlrun.models.json_files import read_json_object
from rlrun.models.mtp import mtp_layer, why_no_mtp
from rlrun.models.vision import LOADED_BY_DEFAULT, read_vision_tower

FAMILIES = tuple(NATIVE)
"""`model_type`s that rlrun loads, trains and exports with layers of its own."""


_TEXT_MODELS = {*FAMILIES, *TEXT_FAMILIES.values()} - TEXT_FAMILIES.keys()
_EXPERT_FAMILIES = (
    *LATENT_FAMILIES,
    "glm4_moe",
    "gpt_oss",
    "minimax_m2",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_moe_text",
)
_NORMED_FAMILIES = (*DELTA_FAMILIES, "minimax_m2", "qwen3", "qwen3_moe", "qwen3_vl_text")
"""Families that always have norms of queries and keys."""
_BIASED_FAMILIES = ("mimo", "qwen2", "qwen2_5_vl_text")
"""Families whose projections to queries, keys and values always have biases."""
_NO_OUTPUT_BIAS = ("glm4_moe", *_BIASED_FAMILIES)
"""Families in which `attention_bias` does not concern the attention's output projection."""


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the contents of a folder's `config.json`; raises ValueError if it is missing or invalid."""
    path = folder / "config.json"
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise ValueError(
            f"{folder} is not a model folder: it has no config.json; name a Hugging Face folder or id"
        ) from None


def read_architecture(folder: Path, *, with_biases: bool = False) -> Architecture:
    """Returns the architecture of a model folder, as `architecture` does."""
    return architecture(read_config(folder), f"{folder / 'config.json'}", with_biases=with_biases)


def architecture(
    config: Mapping[str, Any], where: str = "config.json", *, with_biases: bool = False
) -> Architecture:
    """Returns the architecture that a `config.json` declares.

    Raises ValueError for missing or wrong values, and for families and features that are not supported.
    `with_biases` accepts `attention_bias` and `mlp_bias`, which the native engine computes and the trainer
    does not.
    """
    try:
        family = config.get("model_type")
        if family in TEXT_FAMILIES and family != "qwen2_5_vl" and not config.get("text_config"):
            raise KeyError("text_config")
        model = _architecture(with_family_defaults(config), where, with_biases=with_biases)
        return _multimodal(model, config, where) if family in TEXT_FAMILIES else model
    except KeyError as missing:
        raise ValueError(f"{where} has no {missing}") from None
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{where} has a value of the wrong type: {error}") from None


def with_vision_tower(model: Architecture, setting: str | None) -> Architecture:
    """Returns the architecture with the tower as `trainer.vision_tower` says: `none`, `frozen` or `trained`.

    None: as it is by default. Raises ValueError if the model has no tower that could be loaded.
    """
    if setting is None or (setting == "none" and model.vision is None):
        return model
    if model.vision is None:
        raise ValueError(
            f'trainer.vision_tower = "{setting}", and this {model.family} model has no vision tower: '
            "remove it"
        )
    return replace(model, vision=replace(model.vision, loaded=setting != "none"))


def with_mtp_layer(model: Architecture) -> Architecture:
    """Returns the architecture with its MTP layer. Raises ValueError if the trainer cannot train it."""
    if (reason := why_no_mtp(model.family, model.mtp_layers)) is not None:
        raise ValueError(f"trainer.mtp_loss is not supported: {reason}; remove it")
    return replace(model, mtp=mtp_layer(model.family, model.layers))


def _multimodal(text: Architecture, config: Mapping[str, Any], where: str) -> Architecture:
    """Returns the architecture of a checkpoint whose text model is given."""
    if isinstance(tower := config.get("vision_config"), Mapping):
        check_numbers(tower, where)
    family, vision, rope = config["model_type"], read_vision_tower(config), text.rope
    if family in LOADED_BY_DEFAULT and not rope.axes:
        raise ValueError(f"{where} has no mrope_section in rope_parameters, which {family} needs")
    if rope.axes and 2 * len(rope.axes) != text.rotated_dim:
        raise ValueError(
            f"mrope_section in {where} adds up to {len(rope.axes)}; it has to be half of the "
            f"{text.rotated_dim} dimensions that RoPE rotates"
        )
    if vision is not None and vision.output != text.hidden:
        raise ValueError(
            f"out_hidden_size = {vision.output} in {where} has to be the text model's hidden_size, "
            f"{text.hidden}"
        )
    prefix = "model." if family == "qwen2_5_vl" else "model.language_model."
    return replace(text, family=family, prefix=prefix, vision=vision)


def _architecture(config: Mapping[str, Any], where: str, *, with_biases: bool) -> Architecture:
    family = config.get("model_type")
    if family not in _TEXT_MODELS:
        raise ValueError(
            f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}, and others with "
            'model.implementation = "transformers"'
        )
    refuse_nulls(config, where)
    check_numbers(config, where)
    _refuse_variants(config, with_biases=with_biases)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = read_rope(config)
    latent = read_latent(config) if family in LATENT_FAMILIES else None
    head_dim = config.get("head_dim") or hidden // heads
    attention_bias = bool(config.get("attention_bias"))
    has_delta_net = family in DELTA_FAMILIES
    experts = read_experts(config) if family in _EXPERT_FAMILIES else None
    return Architecture(
        family=family,
        vocab=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=heads if latent else config.get("num_key_value_heads") or heads,
        head_dim=latent.unrotated_dim + latent.rotated_dim if latent else head_dim,
        intermediate=_dense_width(config, experts),
        norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
        tied=config["tie_word_embeddings"],
        rope=rope,
        qk_norm=family in _NORMED_FAMILIES or bool(config.get("use_qk_norm")),
        joint_qk_norm=family == "minimax_m2",
        qkv_bias=family in _BIASED_FAMILIES or attention_bias,
        initializer_range=config["initializer_range"],
        dtype=weight_dtype(config),
        output_bias=attention_bias and family not in _NO_OUTPUT_BIAS,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias")),
        experts=experts,
        latent=latent,
        delta=read_delta_net(config) if has_delta_net else None,
        output_gate=has_delta_net,
        offset_norms=has_delta_net,
        rotary_dim=read_rotary_dim(config, head_dim),
        sinks=family == "gpt_oss",
        windows=read_windows(config) if family == "gpt_oss" else (),
        mtp_layers=config.get("num_nextn_predict_layers") or 0,
    )


def _dense_width(config: Mapping[str, Any], experts: Experts | None) -> int:
    """Returns the inner width of dense feed-forwards. Qwen3.5's MoE has none but its shared experts."""
    if config["model_type"] == "qwen3_5_moe_text":
        assert experts is not None
        return experts.shared
    width: int = config["intermediate_size"]
    return width


def weight_dtype(config: Mapping[str, Any]) -> str:
    """Returns the precision of the weights; for quantised weights, the one that they are computed in."""
    declared = config.get("dtype") or config.get("torch_dtype")
    if declared and not isinstance(declared, str):
        raise ValueError(f"dtype is {declared!r} in config.json: it must be a name, such as bfloat16")
    return declared or ("bfloat16" if quantisation(config) else "float32")


def quantisation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns how a config.json describes quantised weights, as a whole or for its text model; empty if it
    does not. Raises ValueError if the description is not a table.
    """
    inner = config.get("text_config")
    settings = config.get("quantization_config") or (
        inner.get("quantization_config") if isinstance(inner, Mapping) else None
    )
    if settings and not isinstance(settings, Mapping):
        raise ValueError(
            f"quantization_config in config.json is {settings!r}, which is not a table of settings"
        )
    return settings or {}


def packed_groups(settings: Mapping[str, Any]) -> list[object]:
    """Returns the `group_size` of each group of modules that quantised weights describe in `config_groups`;
    None for a group without any.
    """
    groups = settings.get("config_groups")
    weights = [
        group.get("weights") if isinstance(group, Mapping) else None
        for group in (groups.values() if isinstance(groups, Mapping) else ())
    ]
    return [numbers.get("group_size") if isinstance(numbers, Mapping) else None for numbers in weights]


def _refuse_variants(config: Mapping[str, Any], *, with_biases: bool) -> None:
    """Raises ValueError for options that change the model's mathematics and that nothing here computes."""
    family = config["model_type"]
    if family == "gpt_oss" and not config["attention_bias"]:
        raise ValueError("attention_bias = false in config.json is not supported for gpt_oss")
    refused = {"mlp_bias", "use_sliding_window", "attention_bias"}
    if family == "gpt_oss" or family in _NO_OUTPUT_BIAS:
        refused.remove("attention_bias")
    if family == "minimax_m2":
        _refuse_minimax_variants(config)
    if with_biases and family not in DELTA_FAMILIES:
        refused -= {"attention_bias", "mlp_bias"}
    for key in sorted(refused):
        if config.get(key):
            raise ValueError(f"{key} = true in config.json is not supported for {family}")
    if config["hidden_act"] != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} in config.json is not supported; only 'silu'")


def _refuse_minimax_variants(config: Mapping[str, Any]) -> None:
    """Raises ValueError for layers that the published configs can describe and transformers ignores."""
    if config.get("use_qk_norm") is False or config.get("qk_norm_type", "per_layer") != "per_layer":
        raise ValueError(
            "use_qk_norm and qk_norm_type in config.json must be true and 'per_layer' for minimax_m2: other "
            "norms are not supported"
        )
    if any(kind != 1 for kind in config.get("attn_type_list") or ()):
        raise ValueError("attn_type_list in config.json has linear attention, which is not supported")
