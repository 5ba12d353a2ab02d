"""Reads the architecture that a Hugging Face `config.json` declares, without torch.

The trainer, the native engine and `rlrun plan` all read it here.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.models.checked_values import check_numbers
from rlrun.models.config_defaults import refuse_nulls, with_family_defaults
from rlrun.models.families.table import NATIVE, family_named, family_of, why_no_mtp
from rlrun.models.family import Family
from rlrun.models.json_files import read_json_object
from rlrun.models.vision import VisionTower, read_tower


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
        checkpoint = family_of(config)
        text = checkpoint.text
        if text is not None and not text.may_be_flat and not config.get("text_config"):
            raise KeyError("text_config")
        model = _text_model(with_family_defaults(config), where, with_biases=with_biases)
        return model if text is None else _multimodal(model, config, where, text.prefix)
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
    layer_of = family_named(model.family).mtp
    assert layer_of is not None, "why_no_mtp says that there is one"
    return replace(model, mtp=layer_of(model.layers))


def read_vision_tower(config: Mapping[str, Any]) -> VisionTower | None:
    """Reads the vision tower of a `config.json`; None for families and checkpoints without one. Raises
    KeyError for missing keys.
    """
    facts = family_of(config).tower
    return None if facts is None else read_tower(config, facts)


def _multimodal(text: Architecture, config: Mapping[str, Any], where: str, prefix: str) -> Architecture:
    """Returns the architecture of a checkpoint whose text model is given."""
    for part in (config, config.get("vision_config")):
        if isinstance(part, Mapping):
            check_numbers(part, where)
    family, vision, rope = family_of(config), read_vision_tower(config), text.rope
    if family.tower is not None and family.tower.loaded_by_default and not rope.axes:
        raise ValueError(f"{where} has no mrope_section in rope_parameters, which {family.model_type} needs")
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
    return replace(text, family=family.model_type, prefix=prefix, vision=vision)


def _text_model(config: Mapping[str, Any], where: str, *, with_biases: bool) -> Architecture:
    """Returns the architecture of a model of text."""
    family = family_of(config)
    if family.read is None:
        raise ValueError(
            f"model_type {config.get('model_type')!r} is not supported; supported are {', '.join(NATIVE)}, "
            'and others with model.implementation = "transformers"'
        )
    refuse_nulls(config, where)
    check_numbers(config, where)
    _refuse_variants(config, family, with_biases=with_biases)
    model = family.read(config)
    experts = model.experts
    if experts is not None:
        experts = replace(
            experts,
            correction_bias=family.expert_bias,
            names=family.expert_names,
            adaptable=family.adapts_experts,
        )
    return replace(
        model,
        experts=experts,
        has_layers_behind=family.has_layers_behind,
        beside_policy=family.beside_policy,
        own_layers=family.own_layers,
    )


def _refuse_variants(config: Mapping[str, Any], family: Family, *, with_biases: bool) -> None:
    """Raises ValueError for options that change the model's mathematics and that nothing here computes."""
    if family.refuse is not None:
        family.refuse(config)
    refused = {"mlp_bias", "use_sliding_window", "attention_bias"}
    if family.trains_attention_bias:
        refused.remove("attention_bias")
    if with_biases and family.native_biases:
        refused -= {"attention_bias", "mlp_bias"}
    for key in sorted(refused):
        if config.get(key):
            raise ValueError(f"{key} = true in config.json is not supported for {family.model_type}")
    if config["hidden_act"] != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} in config.json is not supported; only 'silu'")
