"""Maps tensors between Hugging Face and torchtitan, for every supported model family."""

from collections.abc import Callable, Mapping
from typing import Any

from rlrun.converters.families.adapters import PACKAGES, AdaptedFamily
from rlrun.converters.families.mapping import Lenience, Mapped, alias_names_of, to_hf, to_parameters
from rlrun.converters.tensors.content import Content, plain
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import StoredTensor
from rlrun.models.config_json import FAMILIES, architecture


def check_family(config: Mapping[str, Any]) -> None:
    """Raises ValueError where the model family is not supported."""
    family = config.get("model_type")
    if family not in FAMILIES and family not in PACKAGES:
        supported = ", ".join(dict.fromkeys((*FAMILIES, *PACKAGES)))
        raise ValueError(f"model_type {family!r} is not supported; supported are {supported}")


def map_to_parameters(
    config: Mapping[str, Any], contents: Mapping[str, Content], where: str, lenience: Lenience
) -> Mapped:
    """Maps Hugging Face tensors to torchtitan's parameters. Raises ValueError for wrong tensors."""
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
    """Maps torchtitan's parameters to Hugging Face tensors. Raises ValueError for missing or unknown tensors.

    `own`: whether rlrun's trainer wrote the checkpoint. `fixed`: Hugging Face tensors that are not trained,
    for those that the checkpoint does not have.
    """
    if own and "model.embed_tokens.weight" in described:
        return Mapped(
            {name: plain(read(name)) for name in described}
        )  # trained with `implementation = "transformers"`, under the same names
    check_family(config)
    if config["model_type"] in FAMILIES:
        model = architecture(config)
        return to_hf(model, described, read, where=where, lenience=lenience, own=own, fixed=fixed)
    return AdaptedFamily(config).to_hf(described, read, where, lenience)


def alias_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the second names that parameters have in torchtitan's checkpoints."""
    return alias_names_of(architecture(config)) if config["model_type"] in FAMILIES else {}
