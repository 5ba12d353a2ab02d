"""Quantises the projections of a checkpoint, and dequantises checkpoints of every kind that rlrun reads."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch

from rlrun.converters.quantised import fp8, int4, mxfp4
from rlrun.converters.tensors.content import Content
from rlrun.converters.tensors.precision import is_code
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.models.decoder_config import quantisation
from rlrun.models.families.table import family_of
from rlrun.models.low_precision import DEFAULT_INT4_GROUP, PROJECTIONS, has_routed_experts, is_int4_matrix

Kind = Literal["fp8-block", "fp8-channel", "fp8-tensor", "int4-group"]
"""The kinds that weights can be quantised to."""
KINDS: tuple[Kind, ...] = get_args(Kind)


def parse_kind(name: str | None) -> Kind | None:
    """Returns the kind of this name, such as `"fp8-block"`; None for any other name."""
    return next((kind for kind in KINDS if kind == name), None)


def quantise(
    contents: Mapping[str, Content], config: Mapping[str, Any], kind: Kind, group: int = DEFAULT_INT4_GROUP
) -> tuple[dict[str, Content], dict[str, Any]]:
    """Returns the contents with quantised projections, and the config.json that describes them. In four bits
    a model with experts has only their matrices. `group`: how many numbers share a scale in four bits.

    Raises ValueError for models that cannot be quantised to this kind.
    """
    family = family_of(config)
    if family.unquantised_because is not None:
        raise ValueError(f"{family.model_type} cannot be quantised: {family.unquantised_because}")
    granularity, chosen = fp8.granularity(kind), _quantised_names(contents, kind)
    quantised: dict[str, Content] = {}
    for name, content in contents.items():
        if name not in chosen:
            quantised[name] = content
        elif granularity is None:
            quantised |= int4.pack_weight(name, content, group)
        else:
            quantised |= fp8.quantise_weight(name, content, granularity)
    unquantised = {
        name.removesuffix(".weight")
        for name, content in contents.items()
        if len(content.tensor.shape) == 2 and name not in chosen and "embed" not in name
    }
    kept = sorted({"lm_head", *unquantised})
    settings = int4.config(kept, group) if granularity is None else fp8.config(kept, granularity)
    return quantised, dict(config) | {"quantization_config": settings}


def _quantised_names(contents: Mapping[str, Content], kind: Kind) -> set[str]:
    """Returns the names of the matrices that are quantised to this kind."""
    matrices = [name for name, content in contents.items() if len(content.tensor.shape) == 2]
    if kind == "int4-group":
        routed = has_routed_experts(contents)
        return {name for name in matrices if is_int4_matrix(name, routed=routed)}
    return {name for name in matrices if name.endswith(PROJECTIONS)}


def dequantise(
    contents: Mapping[str, Content], config: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Content]:
    """Returns the contents of a checkpoint in `dtype` where they were quantised.

    Raises ValueError for unsupported kinds, and for codes that config.json does not describe.
    """
    settings = quantisation(config)
    dequantised = _dequantised(contents, settings, dtype) if settings else dict(contents)
    for name, content in dequantised.items():
        if _is_unread(content.tensor):
            lack = "does not describe this" if settings else "has no quantization_config"
            raise ValueError(f"{name} is quantised ({content.tensor.dtype}), but config.json {lack}")
    return dequantised


def _dequantised(
    contents: Mapping[str, Content], settings: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Content]:
    match settings.get("quant_method"), settings.get("format"):
        case "mxfp4", _:
            return mxfp4.dequantise_weights(contents, dtype)
        case ("fp8", None) | ("compressed-tensors", "float-quantized" | "naive-quantized"):
            return fp8.dequantise_weights(contents, settings, dtype)
        case "compressed-tensors", int4.FORMAT:
            return int4.dequantise_weights(contents, settings, dtype)
        case method, layout:
            raise ValueError(
                f"the checkpoint is quantised by {method!r} ({layout or 'no format'}), which is not "
                "supported; supported are FP8 (quant_method fp8, or compressed-tensors with format "
                "float-quantized), compressed-tensors with format pack-quantized, and mxfp4"
            )


def _is_unread(tensor: TensorInfo) -> bool:
    """Returns whether a tensor has codes that were not dequantised. Stored masks are not codes."""
    is_matrix = len(tensor.shape) == 2 and tensor.dtype != torch.bool
    return is_code(tensor.dtype) and (tensor.dtype.is_floating_point or is_matrix)
