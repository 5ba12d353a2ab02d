"""Quantises the projections of a checkpoint, and dequantises checkpoints of every kind that rlrun reads."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch

from rlrun.converters.quantised import fp8, int4, mxfp4
from rlrun.converters.tensors.content import Content

Kind = Literal["fp8-block", "fp8-channel", "fp8-tensor", "int4-group"]
"""The kinds that weights can be quantised to."""
KINDS: tuple[Kind, ...] = get_args(Kind)
PROJECTIONS = ("_proj.weight", "_proj_with_mqa.weight")
"""Suffixes of projections: of attention, feed-forward and experts; not embedding, head, router or norms."""


def parse_kind(name: str | None) -> Kind | None:
    """Returns the kind of this name, such as `"fp8-block"`; None for any other name."""
    return next((kind for kind in KINDS if kind == name), None)


def quantise(
    contents: Mapping[str, Content], config: Mapping[str, Any], kind: Kind
) -> tuple[dict[str, Content], dict[str, Any]]:
    """Returns the contents with quantised projections, and the config.json that describes them.

    Raises ValueError for models that cannot be quantised to this kind.
    """
    if config["model_type"] == "gpt_oss":
        raise ValueError("gpt_oss cannot be quantised: engines do not load its experts as separate matrices")
    granularity = fp8.granularity(kind)
    quantised: dict[str, Content] = {}
    for name, content in contents.items():
        if not _is_projection(name, content):
            quantised[name] = content
        elif granularity is None:
            quantised |= int4.pack_weight(name, content)
        else:
            quantised |= fp8.quantise_weight(name, content, granularity)
    kept = sorted(
        name.removesuffix(".weight")
        for name, content in contents.items()
        if len(content.tensor.shape) == 2 and not name.endswith(PROJECTIONS) and "embed" not in name
    )
    kept = sorted({"lm_head", *kept})
    settings = int4.config(kept) if granularity is None else fp8.config(kept, granularity)
    return quantised, dict(config) | {"quantization_config": settings}


def dequantise(
    contents: Mapping[str, Content], config: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Content]:
    """Returns the contents of a quantised checkpoint in `dtype`. Raises ValueError for unsupported kinds."""
    if not (settings := config.get("quantization_config")):
        return dict(contents)
    match settings.get("quant_method"), settings.get("format"):
        case "mxfp4", _:
            return mxfp4.dequantise_weights(contents, dtype)
        case ("fp8", _) | ("compressed-tensors", None | "float-quantized" | "naive-quantized"):
            return fp8.dequantise_weights(contents, dtype)
        case "compressed-tensors", int4.FORMAT:
            return int4.dequantise_weights(contents, settings, dtype)
        case method, layout:
            raise ValueError(
                f"the checkpoint is quantised by {method!r} ({layout or 'no format'}), which is not "
                "supported; supported are FP8 (quant_method fp8, or compressed-tensors with format "
                "float-quantized), compressed-tensors with format pack-quantized, and mxfp4"
            )


def _is_projection(name: str, content: Content) -> bool:
    return name.endswith(PROJECTIONS) and len(content.tensor.shape) == 2
