"""A model's mapping between Hugging Face and torchtitan, by its family."""

from collections.abc import Callable, Mapping
from typing import Any

from rlrun.converters.families.adapters import PACKAGES, AdaptedFamily
from rlrun.converters.families.mapping import Lenience, Mapped, alias_names_of, to_hf, to_parameters
from rlrun.converters.tensors.content import Content, plain
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import StoredTensor
from rlrun.models.config_json import FAMILIES, architecture


def check_family(config: Mapping[str, Any]) -> None:
    """ValueError where the mapping is not known."""
    family = config.get("model_type")
    if family not in FAMILIES and family not in PACKAGES:
        known = ", ".join(dict.fromkeys((*FAMILIES, *PACKAGES)))
        raise ValueError(f"model_type {family!r} is not supported; supported are {known}")


def map_to_parameters(
    config: Mapping[str, Any], contents: Mapping[str, Content], where: str, lenience: Lenience
) -> Mapped:
    """torchtitan's parameters of Hugging Face tensors. ValueError names what is missing or not known."""
    check_family(config)
    if config["model_type"] in FAMILIES:
        return to_parameters(architecture(config), contents, where, lenience)
    return AdaptedFamily(config).to_parameters(contents, where, lenience)


def map_to_hf(
    config: Mapping[str, Any],
    described: Mapping[str, TensorInfo],
    read: Callable[[str], StoredTensor],
    *,
    where: str,
    lenience: Lenience,
    own: bool,
    fixed: Mapping[str, Content],
) -> Mapped:
    """Hugging Face tensors of torchtitan's parameters. ValueError names what is missing or not known.

    `own`: the checkpoint is of rlrun's trainer. `fixed`: Hugging Face tensors that nobody trains, and that it
    may not hold.
    """
    if own and "model.embed_tokens.weight" in described:
        return Mapped({name: plain(read(name)) for name in described})  # transformers computed it
    check_family(config)
    if config["model_type"] in FAMILIES:
        model = architecture(config)
        return to_hf(model, described, read, where=where, lenience=lenience, own=own, fixed=fixed)
    return AdaptedFamily(config).to_hf(described, read, where, lenience)


def alias_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Second names of parameters, in torchtitan's checkpoints."""
    return alias_names_of(architecture(config)) if config["model_type"] in FAMILIES else {}
