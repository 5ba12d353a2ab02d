"""Eight-bit floating point weights (e4m3), in the layouts that SGLang and transformers load.

A weight is kept as `weight` (float8_e4m3fn) and factors that it must be multiplied by:
block    `weight_scale_inv`, one for each 128 x 128 block (DeepSeek-V3, arXiv:2412.19437)
channel  `weight_scale` `[rows, 1]`, one for each output channel (compressed-tensors, "float-quantized")
tensor   `weight_scale` `[1]`, one for all (the same)
Activations are quantised by the engine, as it goes.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from rlrun.converters.content import Content
from rlrun.converters.copying import blocks
from rlrun.converters.safetensors_format import Described
from rlrun.converters.stored import Files

Granularity = Literal["block", "channel", "tensor"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
BLOCK = 128
_MAX = torch.finfo(torch.float8_e4m3fn).max
_SCAN_BYTES = 16 << 20
_QUANTISED = ("_proj.weight", "_proj_with_mqa.weight")
"""Projections of attention, feed-forward and experts; not embedding, head, router or norms."""


def granularity(name: str) -> Granularity | None:
    """`"fp8-block"` -> `"block"`; None for `"none"`."""
    return next((each for each in GRANULARITIES if name == f"fp8-{each}"), None)


def quantised(contents: Mapping[str, Content], granularity: Granularity) -> dict[str, Content]:
    """The contents with their projections in eight bits."""
    made: dict[str, Content] = {}
    for name, content in contents.items():
        if not (name.endswith(_QUANTISED) and len(content.tensor.shape) == 2):
            made[name] = content
            continue
        factors = _FACTORS[granularity](content)
        made[name] = QuantisedWeight(content, factors)
        made[f"{name}_scale_inv" if granularity == "block" else f"{name}_scale"] = factors
    return made


def quantisation_config(contents: Mapping[str, Content], granularity: Granularity) -> dict[str, Any]:
    """`quantization_config` for config.json; `contents` are those before quantisation."""
    kept = sorted(
        name.removesuffix(".weight")
        for name, content in contents.items()
        if len(content.tensor.shape) == 2 and not name.endswith(_QUANTISED) and "embed" not in name
    )
    if granularity == "block":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": sorted({"lm_head", *kept}),
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
        "ignore": sorted({"lm_head", *kept}),
    }


def dequantised(
    contents: Mapping[str, Content], config: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Content]:
    """The contents of an eight-bit checkpoint in `dtype`; ValueError for other kinds of quantisation."""
    if not (settings := config.get("quantization_config")):
        return dict(contents)
    method = settings.get("quant_method")
    if method not in ("fp8", "compressed-tensors") or settings.get("format", "float-quantized") not in (
        "float-quantized",
        "naive-quantized",
    ):
        raise ValueError(
            f"the checkpoint is quantised by {method!r} ({settings.get('format', 'no format')}), which is "
            "not read; FP8 is (quant_method fp8, or compressed-tensors with format float-quantized)"
        )
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


class Factors:
    """What the rows of a quantised weight must be multiplied by; a tensor of its own, float32."""

    def __init__(
        self, weight: Content, shape: tuple[int, ...], step: int, factors: Callable[..., torch.Tensor]
    ) -> None:
        self._weight = weight
        self._per_row = step
        self._factors = factors
        self.tensor = Described(torch.float32, shape)
        self.step = math.lcm(step, weight.step) // step

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Some factors."""
        end = min(last * self._per_row, self._weight.tensor.shape[0])
        return self.of(files, self._weight.rows(files, first * self._per_row, end).float())

    @property
    def weight_step(self) -> int:
        """Rows of the weight that factors are of."""
        return self.step * self._per_row

    def of(self, files: Files, rows: torch.Tensor) -> torch.Tensor:
        """The factors of some rows (float32) of the weight."""
        return self._factors(rows)


class WholeFactor(Factors):
    """One factor for the whole weight, which is read for it once."""

    def __init__(self, weight: Content) -> None:
        super().__init__(weight, (1,), 1, _positive)
        self._lock = threading.Lock()
        self._found: torch.Tensor | None = None

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """`[1]`."""
        with self._lock:
            if self._found is None:
                parts = [
                    self._weight.rows(files, begin, end).float().abs().max()
                    for begin, end in blocks(self._weight, _SCAN_BYTES)
                ]
                self._found = _positive(torch.stack(parts).max().view(1) / _MAX)
            return self._found

    def of(self, files: Files, rows: torch.Tensor) -> torch.Tensor:
        """`[1]`, whatever the rows."""
        return self.rows(files, 0, 1)


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight in eight bits."""

    source: Content
    factors: Factors

    @property
    def tensor(self) -> Described:
        """Type and shape."""
        return Described(torch.float8_e4m3fn, self.source.tensor.shape)

    @property
    def step(self) -> int:
        """Rows that share factors."""
        return self.factors.weight_step

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """The weight over its factors, rounded to nearest."""
        rows = self.source.rows(files, first, last).float()
        return (rows / _spread(self.factors.of(files, rows), rows)).clamp_(-_MAX, _MAX).to(self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class DequantisedWeight:
    """A weight of eight bits times its factors."""

    source: Content
    factors: Content
    dtype: torch.dtype

    @property
    def tensor(self) -> Described:
        """Type and shape."""
        return Described(self.dtype, self.source.tensor.shape)

    @property
    def step(self) -> int:
        """Rows that share factors."""
        return math.lcm(self._per_row, self.source.step)

    @property
    def _per_row(self) -> int:
        shape = self.factors.tensor.shape
        per_row = len(shape) == 2 and shape[1] == 1 and shape[0] == self.source.tensor.shape[0]
        return BLOCK if len(shape) == 2 and not per_row else 1

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Multiplied in float32."""
        rows = self.source.rows(files, first, last).float()
        count = self.factors.tensor.shape[0] if self.factors.tensor.shape else 1
        if count == 1:
            factors = self.factors.rows(files, 0, 1)
        else:
            factors = self.factors.rows(files, first // self._per_row, -(-last // self._per_row))
        return (rows * _spread(factors.float(), rows)).to(self.dtype)


def _spread(factors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Factors that can be multiplied with the rows."""
    if factors.ndim < 2 or (factors.shape[1] == 1 and factors.shape[0] == rows.shape[0]):
        return factors
    wide = factors.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return wide[: rows.shape[0], : rows.shape[1]]


def _positive(factors: torch.Tensor) -> torch.Tensor:
    """Zeros need some factor too."""
    return torch.where(factors > 0, factors, 1.0)


def _block_factors(rows: torch.Tensor) -> torch.Tensor:
    height, width = (-size % BLOCK for size in rows.shape)
    padded = torch.nn.functional.pad(rows, (0, width, 0, height))
    tiles = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    return _positive(tiles.abs().amax((1, 3)) / _MAX)


def _row_factors(rows: torch.Tensor) -> torch.Tensor:
    return _positive(rows.abs().amax(1, keepdim=True) / _MAX)


def _blocks_of(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-size // BLOCK) for size in shape)


_FACTORS: dict[Granularity, Callable[[Content], Factors]] = {
    "block": lambda weight: Factors(weight, _blocks_of(weight.tensor.shape), BLOCK, _block_factors),
    "channel": lambda weight: Factors(weight, (weight.tensor.shape[0], 1), 1, _row_factors),
    "tensor": WholeFactor,
}
