"""Eight-bit floating point weights (e4m3), in the layouts that SGLang and transformers load.

A weight is stored as `weight` (float8_e4m3fn) and the factors that it has to be multiplied by:
block    `weight_scale_inv`, one factor per block, of 128 x 128 numbers unless `weight_block_size` in a
         checkpoint that is read says otherwise (DeepSeek-V3, arXiv:2412.19437)
channel  `weight_scale` `[rows, 1]`, one factor per output channel (compressed-tensors, "float-quantized")
tensor   `weight_scale` `[1]`, one factor for the whole weight (also "float-quantized")
The engine quantises activations at run time.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import torch

from rlrun.converters.quantised.fp8_weights import (
    BLOCK,
    DequantisedWeight,
    Factors,
    Granularity,
    Layout,
    QuantisedWeight,
    block_of,
    grid,
)
from rlrun.converters.quantised.number_groups import number_groups
from rlrun.converters.tensors.content import Content

GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
_SUFFIXES = ("_scale_inv", "_scale")
"""Ends of the names of factors. Weights are multiplied by both: `inv` inverts what they were divided by."""
_UNREAD = ("_zero_point", "_g_idx", "_global_scale")
"""Ends of the names of tensors that change what a quantised weight means."""
_ACTIVATION_SCALES = ("input_scale", "activation_scale", "output_scale")
_CACHE_SCALES = ("q_scale", "k_scale", "v_scale")
_FACTOR_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e8m0fnu)
_E4M3 = (None, "e4m3", "float8_e4m3", "float8_e4m3fn")
_NUMBERS = {"num_bits": 8, "type": "float", "symmetric": True}


def granularity(name: str) -> Granularity | None:
    """Returns the granularity of a kind, such as `"block"` for `"fp8-block"`; None for other kinds."""
    return next((granularity for granularity in GRANULARITIES if name == f"fp8-{granularity}"), None)


def quantise_weight(name: str, weight: Content, granularity: Granularity) -> dict[str, Content]:
    """Returns the tensors that store a projection's quantised weight, by name."""
    factors = Factors(weight, granularity)
    suffix = "_scale_inv" if granularity == "block" else "_scale"
    return {name: QuantisedWeight(weight, factors), name + suffix: factors}


def config(kept: list[str], granularity: Granularity) -> dict[str, Any]:
    """Returns `quantization_config` for config.json; `kept` names the modules that are not quantised."""
    if granularity == "block":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": kept,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**_NUMBERS, "strategy": granularity, "dynamic": False},
                "input_activations": {**_NUMBERS, "strategy": "token", "dynamic": True},
            }
        },
        "ignore": kept,
    }


def dequantise_weights(
    contents: Mapping[str, Content], settings: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Content]:
    """Returns the contents of an FP8 checkpoint in `dtype`, without the scales of activations.

    Raises ValueError if weights and factors do not have the layout that `settings` describes, or if one of
    them lacks the other.
    """
    layouts = stored_layouts(settings)
    weights = {name for name, content in contents.items() if content.tensor.dtype == torch.float8_e4m3fn}
    modules = {name.rpartition(".")[0] for name in weights}
    dequantised: dict[str, Content] = {}
    for name, content in contents.items():
        if name in weights:
            dequantised[name] = _dequantised(name, contents, layouts, dtype)
        elif (weight := _scaled_weight(name, contents)) is not None:
            if weight not in weights:
                stored = contents[weight].tensor.dtype if weight in contents else "not in the checkpoint"
                raise ValueError(f"{name} is the scale of {weight}, which should be in FP8 and is {stored}")
        elif not _scales_activations(name, modules):
            dequantised[name] = content
    return dequantised


def _scaled_weight(name: str, contents: Mapping[str, Content]) -> str | None:
    """Returns the weight that a tensor scales; None for other tensors, also those that merely end in _scale.

    The names of a module's weight and of its scale differ in a suffix only.
    """
    suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)
    weight = name.removesuffix(suffix) if suffix is not None else None
    return weight if weight is not None and (weight in contents or weight.endswith(".weight")) else None


def _scales_activations(name: str, modules: Collection[str]) -> bool:
    """Returns whether a tensor scales what a quantised module reads, or the KV cache."""
    module, _, kind = name.rpartition(".")
    return kind in _CACHE_SCALES or (kind in _ACTIVATION_SCALES and module in modules)


def _dequantised(
    name: str, contents: Mapping[str, Content], layouts: Sequence[Layout], dtype: torch.dtype
) -> DequantisedWeight:
    """Returns a weight multiplied by its factors. Raises ValueError unless they have one of the layouts."""
    stored = [name + suffix for suffix in _SUFFIXES if name + suffix in contents]
    if not stored:
        raise ValueError(f"{name} is in FP8 but has no scale: the checkpoint is incomplete")
    if unread := [other for other in (*stored[1:], *(name + end for end in _UNREAD)) if other in contents]:
        raise ValueError(f"{name} has {stored[0]} and {unread[0]}, which rlrun cannot combine")
    weight, factors = contents[name].tensor, contents[stored[0]].tensor
    if factors.dtype not in _FACTOR_DTYPES:
        raise ValueError(f"{stored[0]} is {factors.dtype}, which is not a type of scales that rlrun reads")
    for layout in layouts if len(weight.shape) == 2 else ():
        block = block_of(layout, weight.shape)
        scalar = factors.shape in ((), (1,)) and layout == "tensor"
        if scalar or factors.shape == grid(weight.shape, block):
            return DequantisedWeight(contents[name], contents[stored[0]], block, dtype)
    described = " or ".join(_described(layout) for layout in layouts)
    raise ValueError(
        f"{stored[0]} has shape {factors.shape} for a weight of shape {weight.shape}, but "
        f"quantization_config of config.json describes matrices with {described}"
    )


def stored_layouts(settings: Mapping[str, Any]) -> tuple[Layout, ...]:
    """Returns the layouts that the scales of a checkpoint with this `quantization_config` may have.

    Raises ValueError if rlrun does not know them.
    """
    if settings.get("quant_method") == "fp8":
        if (number := settings.get("fmt")) not in _E4M3:
            raise ValueError(f"quantization_config has fmt {number!r}; rlrun reads only e4m3")
        if "weight_block_size" not in settings:  # transformers means 128 by this, SGLang the whole weight
            return (BLOCK, BLOCK), "tensor"
        size = settings["weight_block_size"]
        return ("tensor",) if size is None else (_block(size, "weight_block_size"),)
    layouts = {_group_layout(group) for group in number_groups(settings)}
    if len(layouts) != 1:
        raise ValueError("quantization_config has config_groups with different layouts; rlrun reads only one")
    return tuple(layouts)


def _group_layout(numbers: Mapping[str, Any]) -> Layout:
    """Returns the layout of compressed-tensors' description of weights."""
    if any(numbers.get(key) != value for key, value in _NUMBERS.items()):
        raise ValueError(f"quantization_config describes weights by {dict(numbers)}; rlrun reads {_NUMBERS}")
    match numbers.get("strategy"):
        case "tensor" | "channel" as layout:
            return layout
        case "block":
            return _block(numbers.get("block_structure"), "block_structure")
        case "group":
            return _block([1, numbers.get("group_size")], "group_size")
        case strategy:
            raise ValueError(f"quantization_config has the strategy {strategy!r}, which rlrun does not read")


def _block(size: object, key: str) -> tuple[int, int]:
    match size:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise ValueError(f"quantization_config has {key} {size!r}; it must hold positive numbers")


def _described(layout: Layout) -> str:
    if isinstance(layout, str):
        return f"one scale per {layout}"
    return f"one scale per {layout[0]} x {layout[1]} block"
