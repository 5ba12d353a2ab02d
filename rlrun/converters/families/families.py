"""Maps tensors between Hugging Face and torchtitan, for every supported model family."""

from collections.abc import Mapping
from typing import Any

from rlrun.converters.families.adapters import AdaptedFamily
from rlrun.converters.families.expected_tensors import Lenience
from rlrun.converters.families.mapping import (
    Mapped,
    StoredParameters,
    alias_names_of,
    to_hf,
    to_parameters,
)
from rlrun.converters.tensors.content import Content
from rlrun.models.architecture import MTP_PROJECTION, Architecture
from rlrun.models.config_json import architecture, with_mtp_layer, with_vision_tower
from rlrun.models.families.table import FAMILIES, NATIVE, family_of
from rlrun.models.tensor_names import TOWER


def check_family(config: Mapping[str, Any]) -> None:
    """Raises ValueError if the model family is not supported."""
    family = family_of(config)
    if family.support is None and family.torchtitan_package is None:
        by_torchtitan = (name for name, each in FAMILIES.items() if each.torchtitan_package is not None)
        supported = ", ".join(dict.fromkeys((*NATIVE, *by_torchtitan)))
        name = config.get("model_type")
        raise ValueError(f"model_type {name!r} is not supported; supported are {supported}")


def map_to_parameters(
    config: Mapping[str, Any], contents: Mapping[str, Content], where: str, lenience: Lenience
) -> Mapped:
    """Maps Hugging Face tensors to torchtitan's parameters. Raises ValueError for wrong tensors."""
    check_family(config)
    if is_native(config):
        return to_parameters(architecture(config), contents, where, lenience)
    return AdaptedFamily(config).to_parameters(contents, where, lenience)


def map_to_hf(config: Mapping[str, Any], parameters: StoredParameters, lenience: Lenience) -> Mapped:
    """Maps torchtitan's parameters to Hugging Face tensors. Raises ValueError for wrong tensors."""
    check_family(config)
    if parameters.own or is_native(config):
        return to_hf(_trained_model(config, parameters), parameters, lenience)
    return AdaptedFamily(config).to_hf(parameters, lenience)


def _trained_model(config: Mapping[str, Any], parameters: StoredParameters) -> Architecture:
    """Returns the architecture of a checkpoint, with the MTP layer and the vision tower that it has."""
    model = architecture(config)
    if model.vision is not None and any(name.startswith(TOWER) for name in parameters.described):
        model = with_vision_tower(model, "trained")
    has_mtp = any(name.endswith(f".{MTP_PROJECTION}.weight") for name in parameters.described)
    return with_mtp_layer(model) if has_mtp else model


def alias_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the second names that parameters have in torchtitan's checkpoints."""
    return alias_names_of(architecture(config)) if is_native(config) else {}


def is_native(config: Mapping[str, Any]) -> bool:
    """Returns whether a family's tensors are mapped here.

    torchtitan's adapters map whole multimodal checkpoints, under torchtitan's names for a vision tower.
    """
    family = family_of(config)
    return family.support is not None and family.torchtitan_package is None
