"""Four-bit integers with one scale per group of neighbours in a row: compressed-tensors' "pack-quantized".

A weight is stored as `weight_packed` (int32, eight numbers each), `weight_scale` `[rows, columns / group]`
and `weight_shape`. `int4_groups` describes the arithmetic; nothing is calibrated.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlrun.converters.quantised.number_groups import number_groups
from rlrun.converters.tensors.content import Content, InMemory, RowByRow
from rlrun.converters.tensors.int4_groups import (
    from_int4,
    int4_numbers,
    int4_scales,
    pack,
    rounded_to_int4,
    unpack,
)
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files

FORMAT = "pack-quantized"
INT4_GROUP = "int4.group"
"""The name of the group in which a run rounds matrices in its checkpoints; absent from other runs'."""
_PACKED, _SCALE, _SHAPE = "weight_packed", "weight_scale", "weight_shape"
_UNREAD = ("weight_zero_point", "weight_g_idx", "weight_global_scale")
"""Tensors that change what packed numbers mean."""
_BESIDE_PACKED = (_SCALE, _SHAPE, *_UNREAD)
_SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_NUMBERS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
_IN_AN_INT32 = 8


def pack_weight(name: str, weight: Content, group: int) -> dict[str, Content]:
    """Returns the tensors that store a matrix with a scale per `group` numbers, by name.

    Raises ValueError if the number of columns is not a multiple of `group`.
    """
    columns = weight.tensor.shape[1]
    if columns % group:
        raise ValueError(
            f"{name} has {columns} columns, which are not a multiple of the group of {group}: use another "
            "--group-size, or an fp8 kind"
        )
    module = name.removesuffix("weight")
    return {
        module + _PACKED: PackedWeight(weight, group),
        module + _SCALE: Scales(weight, group),
        module + _SHAPE: InMemory(torch.tensor(weight.tensor.shape)),
    }


def config(kept: list[str], group: int) -> dict[str, Any]:
    """Returns `quantization_config` for config.json; `kept` names the modules that are not quantised."""
    numbers = {**_NUMBERS, "group_size": group, "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": numbers, "format": FORMAT}},
        "ignore": kept,
    }


def group_size(settings: Mapping[str, Any]) -> int:
    """Returns the group of a pack-quantized checkpoint.

    Raises ValueError if its number format is not the one that `config` describes.
    """
    groups = number_groups(settings)
    size = groups[0].get("group_size")
    matches = all(
        numbers.get(key) == value
        for numbers in groups
        for key, value in (_NUMBERS | {"group_size": size}).items()
    )
    if not matches or not isinstance(size, int) or size <= 0 or size % _IN_AN_INT32:
        shown = " and ".join(str(dict(numbers)) for numbers in groups)
        raise ValueError(f"the checkpoint's number format is {shown}; rlrun reads only {_NUMBERS}")
    return size


def is_ignored(module: str, settings: Mapping[str, Any]) -> bool:
    """Returns whether a checkpoint keeps this module's weight as it is, by name or by pattern (`re:…`).

    Raises ValueError if the names of kept modules are not a list of texts.
    """
    patterns: Any = settings.get("ignore") or ()
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"quantization_config has ignore = {patterns!r}; it must be a list of names")
    return any(
        re.match(pattern.removeprefix("re:"), module) if pattern.startswith("re:") else pattern == module
        for pattern in patterns
    )


def dequantise_weights(
    contents: Mapping[str, Content], settings: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Content]:
    """Returns the contents of a pack-quantized checkpoint in `dtype`.

    Raises ValueError if its number format is not the one that `config` describes, or if a weight and its
    scales do not fit each other.
    """
    group = group_size(settings)
    dequantised: dict[str, Content] = {}
    for name, content in contents.items():
        module, dot, kind = name.rpartition(".")
        if kind == _PACKED:
            dequantised[f"{module}.weight"] = _dequantised(module, contents, group, dtype)
        elif kind not in _BESIDE_PACKED:
            dequantised[name] = content
        elif module + dot + _PACKED not in contents:
            raise ValueError(f"{name} belongs to a {_PACKED}, which is not in the checkpoint")
    return dequantised


def _dequantised(
    module: str, contents: Mapping[str, Content], group: int, dtype: torch.dtype
) -> "DequantisedInt4Weight":
    """Returns the weight of a module. Raises ValueError unless it has one scale per group of numbers."""
    name = f"{module}.{_PACKED}"
    if unread := [kind for kind in _UNREAD if f"{module}.{kind}" in contents]:
        raise ValueError(f"{name} has a {unread[0]}, which rlrun does not read")
    if (scales := contents.get(f"{module}.{_SCALE}")) is None:
        raise ValueError(f"{name} has no {_SCALE}")
    packed, scaled = contents[name].tensor, scales.tensor
    expected = (packed.shape[0], packed.shape[-1] * _IN_AN_INT32 // group)
    is_whole = len(packed.shape) == 2 and packed.shape[1] * _IN_AN_INT32 % group == 0
    if packed.dtype != torch.int32 or not is_whole or scaled.shape != expected:
        raise ValueError(
            f"{name} has shape {packed.shape} ({packed.dtype}) and scales of shape {scaled.shape}, which are "
            f"not one for each {group} numbers, as quantization_config of config.json describes them"
        )
    if scaled.dtype not in _SCALE_DTYPES:
        raise ValueError(
            f"{module}.{_SCALE} is {scaled.dtype}, which is not a type of scales that rlrun reads"
        )
    return DequantisedInt4Weight(contents[name], scales, dtype)


@dataclass(frozen=True, slots=True)
class PackedWeight(RowByRow):
    """A weight in four bits."""

    group: int

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        rows, columns = self.source.tensor.shape
        return TensorInfo(torch.int32, (rows, columns // _IN_AN_INT32))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns packed rows."""
        rows = _served(self.source.rows(files, first, last))
        return pack(int4_numbers(rows, int4_scales(rows, self.group)))


@dataclass(frozen=True, slots=True)
class Scales(RowByRow):
    """The scales that the groups of a packed weight have to be multiplied by."""

    group: int

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        described = self.source.tensor
        dtype = _served_dtype(described.dtype)
        return TensorInfo(dtype, (described.shape[0], described.shape[1] // self.group))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns the scales of some rows; this reads the weight a second time."""
        return int4_scales(_served(self.source.rows(files, first, last)), self.group)


@dataclass(frozen=True, slots=True)
class DequantisedInt4Weight(RowByRow):
    """A four-bit weight multiplied by its scales, in the scales' precision."""

    scales: Content
    dtype: torch.dtype

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        rows, columns = self.source.tensor.shape
        return TensorInfo(self.dtype, (rows, columns * _IN_AN_INT32))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns some rows in `dtype`."""
        numbers = unpack(self.source.rows(files, first, last))
        return from_int4(numbers, self.scales.rows(files, first, last)).to(self.dtype)


@dataclass(frozen=True, slots=True)
class RoundedWeight(RowByRow):
    """The values of a matrix that a run rounded for its products."""

    group: int

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows with the values that they have in bfloat16, which runs round from."""
        rows = self.source.rows(files, first, last)
        return rounded_to_int4(rows.bfloat16(), self.group).to(rows.dtype)


def _served_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the precision that engines compute in, and hold scales in: they have none in float32."""
    return torch.float16 if dtype == torch.float16 else torch.bfloat16


def _served(rows: torch.Tensor) -> torch.Tensor:
    return rows.to(_served_dtype(rows.dtype))
