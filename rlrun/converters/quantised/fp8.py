"""Eight-bit floating point weights (e4m3), in the layouts that SGLang and transformers load.

A weight is kept as `weight` (float8_e4m3fn) and factors that it must be multiplied by:
block    `weight_scale_inv`, one for each 128 x 128 block (DeepSeek-V3, arXiv:2412.19437)
channel  `weight_scale` `[rows, 1]`, one for each output channel (compressed-tensors, "float-quantized")
tensor   `weight_scale` `[1]`, one for all (the same)
Activations are quantised by the engine, as it goes.
"""

from collections.abc import Mapping
from typing import Any, get_args

import torch

from rlrun.converters.quantised.fp8_weights import (
    BLOCK,
    DequantisedWeight,
    Factors,
    Granularity,
    QuantisedWeight,
)
from rlrun.converters.tensors.content import Content

GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)


def granularity(name: str) -> Granularity | None:
    """`"fp8-block"` -> `"block"`; None for other kinds."""
    return next((each for each in GRANULARITIES if name == f"fp8-{each}"), None)


def quantise_weight(name: str, weight: Content, granularity: Granularity) -> dict[str, Content]:
    """The tensors that a projection's weight becomes."""
    factors = Factors(weight, granularity)
    suffix = "_scale_inv" if granularity == "block" else "_scale"
    return {name: QuantisedWeight(weight, factors), name + suffix: factors}


def config(kept: list[str], granularity: Granularity) -> dict[str, Any]:
    """`quantization_config` for config.json; `kept`: modules that stay as they are."""
    if granularity == "block":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": kept,
        }
    number = {"num_bits": 8, "type": "float", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**number, "strategy": granularity, "dynamic": False},
                "input_activations": {**number, "strategy": "token", "dynamic": True},
            }
        },
        "ignore": kept,
    }


def dequantise_weights(contents: Mapping[str, Content], dtype: torch.dtype) -> dict[str, Content]:
    """The contents of an eight-bit checkpoint in `dtype`. ValueError where a weight has no scale."""
    scales = ("_scale_inv", "_scale")
    made: dict[str, Content] = {}
    for name, content in contents.items():
        found = next((contents[name + end] for end in scales if name + end in contents), None)
        if found is not None:
            made[name] = DequantisedWeight(content, found, dtype)
        elif content.tensor.dtype == torch.float8_e4m3fn:
            raise ValueError(f"{name} is of eight bits and has no scale")
        elif not name.endswith(("_scale", "_scale_inv")):
            made[name] = content
    return made
