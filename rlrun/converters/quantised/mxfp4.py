"""MXFP4, the format of gpt-oss's experts: four-bit floating point (e2m1) with one exponent per 32 numbers.

OCP Microscaling Formats (MX) 1.0: `NAME_blocks` `[experts, outputs, inputs / 32, 16]` holds two numbers per
byte, the even one in the low half; `NAME_scales` `[experts, outputs, inputs / 32]` holds the exponents, with
127 for a factor of 1. bfloat16 represents every value exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rlrun.converters.tensors.arranged import transpose
from rlrun.converters.tensors.content import Content, RowByRow
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127


@dataclass(frozen=True, slots=True)
class Mxfp4Weight(RowByRow):
    """The matrices `[experts, outputs, inputs]` that blocks (the source) and scales store."""

    scales: Content
    dtype: torch.dtype

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        experts, outputs, groups, half = self.source.tensor.shape
        return TensorInfo(self.dtype, (experts, outputs, groups * half * 2))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns the matrices of experts `first` to `last`."""
        packed = self.source.rows(files, first, last)
        exponents = self.scales.rows(files, first, last).int() - _BIAS
        pairs = _pairs(self.dtype).index_select(0, packed.view(-1).int()).view(*packed.shape[:-1], -1)
        return (
            torch.ldexp(pairs, exponents[..., None]).to(self.dtype).view(last - first, *self.tensor.shape[1:])
        )


def dequantise_weights(contents: Mapping[str, Content], dtype: torch.dtype) -> dict[str, Content]:
    """Returns the contents of an MXFP4 checkpoint in `dtype`, in the layout of transformers' unquantised
    models: inputs first. Raises ValueError if the shapes of blocks and scales do not match.
    """
    dequantised: dict[str, Content] = {}
    for name, content in contents.items():
        if name.endswith("_blocks"):
            whole = name.removesuffix("_blocks")
            scales = contents.get(f"{whole}_scales")
            shape = content.tensor.shape
            if scales is None or scales.tensor.shape != shape[:-1] or len(shape) != 4 or shape[-1] != 16:
                raise ValueError(f"{name} has shape {shape} and no scales that match: it is not MXFP4")
            dequantised[whole] = transpose(Mxfp4Weight(content, scales, dtype))
        elif not name.endswith("_scales"):
            dequantised[name] = content
        elif f"{name.removesuffix('_scales')}_blocks" not in contents:
            raise ValueError(f"{name} scales blocks that are not in the checkpoint")
    return dequantised


def _pairs(dtype: torch.dtype) -> torch.Tensor:
    """Returns the two numbers that each byte stores, `[256, 2]`."""
    values = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], dtype=dtype)
    byte = torch.arange(256)
    return torch.stack((values[byte & 15], values[byte >> 4]), dim=1)
