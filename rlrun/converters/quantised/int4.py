"""Four-bit integers with one scale per 128 neighbours in a row: compressed-tensors' "pack-quantized".

A weight is stored as `weight_packed` (int32, eight numbers each), `weight_scale` `[rows, columns / 128]` and
`weight_shape`. The compressed-tensors library rounds to nearest, without calibration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlrun.converters.tensors.content import Content, InMemory, RowByRow
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files

GROUP = 128
FORMAT = "pack-quantized"
_PACKED, _SCALE, _SHAPE = "weight_packed", "weight_scale", "weight_shape"
_NUMBERS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
_IN_AN_INT32 = 8


def pack_weight(name: str, weight: Content) -> dict[str, Content]:
    """Returns the tensors that store a projection's quantised weight, by name.

    Raises ValueError if the number of columns is not a multiple of 128.
    """
    columns = weight.tensor.shape[1]
    if columns % GROUP:
        raise ValueError(
            f"{name} has {columns} columns: int4-group needs a multiple of {GROUP}; use an fp8 kind"
        )
    module = name.removesuffix("weight")
    scheme = _scheme(_NUMBERS)
    return {
        module + _PACKED: PackedWeight(weight, scheme),
        module + _SCALE: Scales(weight, scheme),
        module + _SHAPE: InMemory(torch.tensor(weight.tensor.shape)),
    }


def config(kept: list[str]) -> dict[str, Any]:
    """Returns `quantization_config` for config.json; `kept` names the modules that are not quantised."""
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {**_NUMBERS, "dynamic": False}, "format": FORMAT}
        },
        "ignore": kept,
    }


def dequantise_weights(
    contents: Mapping[str, Content], settings: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Content]:
    """Returns the contents of a pack-quantized checkpoint in `dtype`.

    Raises ValueError if its number format is not the one that `config` describes.
    """
    groups = settings.get("config_groups", {})
    numbers = {key: value for group in groups.values() for key, value in group.get("weights", {}).items()}
    if len(groups) != 1 or any(numbers.get(key) != value for key, value in _NUMBERS.items()):
        raise ValueError(f"the checkpoint's number format is {numbers}; rlrun reads only {_NUMBERS}")
    scheme = _scheme(_NUMBERS)
    dequantised: dict[str, Content] = {}
    for name, content in contents.items():
        if name.endswith(_PACKED):
            module = name.removesuffix(_PACKED)
            if module + _SCALE not in contents:
                raise ValueError(f"{name} has no {_SCALE}")
            scales = contents[module + _SCALE]
            dequantised[f"{module}weight"] = DequantisedInt4Weight(content, scales, scheme, dtype)
        elif not name.endswith((_SCALE, _SHAPE)):
            dequantised[name] = content
    return dequantised


@dataclass(frozen=True, slots=True)
class PackedWeight(RowByRow):
    """A weight in four bits."""

    scheme: Any

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        rows, columns = self.source.tensor.shape
        return TensorInfo(torch.int32, (rows, columns // _IN_AN_INT32))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns packed rows, divided by their scales in the precision in which the scales are stored."""
        from compressed_tensors.compressors import PackedQuantizationCompressor

        rows = self.source.rows(files, first, last)
        state = {"weight": rows.float(), _SCALE: _scales(rows, self.scheme).float()}
        packed: torch.Tensor = PackedQuantizationCompressor.compress(state, self.scheme)[_PACKED]
        return packed


@dataclass(frozen=True, slots=True)
class Scales(RowByRow):
    """The scales that the groups of a packed weight have to be multiplied by."""

    scheme: Any

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        described = self.source.tensor
        return TensorInfo(described.dtype, (described.shape[0], described.shape[1] // GROUP))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns the scales of some rows; this reads the weight a second time."""
        return _scales(self.source.rows(files, first, last), self.scheme)


@dataclass(frozen=True, slots=True)
class DequantisedInt4Weight(RowByRow):
    """A four-bit weight multiplied by its scales."""

    scales: Content
    scheme: Any
    dtype: torch.dtype

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        rows, columns = self.source.tensor.shape
        return TensorInfo(self.dtype, (rows, columns * _IN_AN_INT32))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns some rows in `dtype`."""
        from compressed_tensors.compressors import PackedQuantizationCompressor

        state = {
            _PACKED: self.source.rows(files, first, last),
            _SCALE: self.scales.rows(files, first, last),
            _SHAPE: torch.tensor((last - first, self.tensor.shape[1])),
        }
        weight: torch.Tensor = PackedQuantizationCompressor.decompress(state, self.scheme)["weight"]
        return weight.to(self.dtype)


def _scales(rows: torch.Tensor, scheme: Any) -> torch.Tensor:
    """Returns the scales of rows, `[rows, groups]`, in the weight's precision."""
    from compressed_tensors.quantization.utils import calculate_qparams

    groups = rows.unflatten(1, (-1, GROUP))
    scales: torch.Tensor = calculate_qparams(groups.amin(2), groups.amax(2), scheme.weights)[0]
    return scales


def _scheme(numbers: Mapping[str, Any]) -> Any:
    """Returns compressed-tensors' description of the format. Raises ValueError if it is not installed."""
    try:
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    except ImportError:
        raise ValueError("int4 needs compressed-tensors: pip install 'rlrun[int4]'") from None
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**numbers))
