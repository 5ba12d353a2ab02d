"""Eight-bit floating point weights (e4m3), in the layouts that SGLang and transformers load.

A weight is stored as `weight` (float8_e4m3fn) and the factors that it has to be multiplied by:
block    `weight_scale_inv`, one factor per 128 x 128 block (DeepSeek-V3, arXiv:2412.19437)
channel  `weight_scale` `[rows, 1]`, one factor per output channel (compressed-tensors, "float-quantized")
tensor   `weight_scale` `[1]`, one factor for the whole weight (also "float-quantized")
The engine quantises activations at run time.
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
    """Returns the contents of an FP8 checkpoint in `dtype`. Raises ValueError if a weight has no scale."""
    suffixes = ("_scale_inv", "_scale")
    dequantised: dict[str, Content] = {}
    for name, content in contents.items():
        scale = next((contents[name + suffix] for suffix in suffixes if name + suffix in contents), None)
        if scale is not None:
            dequantised[name] = DequantisedWeight(content, scale, dtype)
        elif content.tensor.dtype == torch.float8_e4m3fn:
            raise ValueError(f"{name} is in FP8 but has no scale: the checkpoint is incomplete")
        elif not name.endswith(suffixes):
            dequantised[name] = content
    return dequantised
