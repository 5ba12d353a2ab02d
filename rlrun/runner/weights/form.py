"""The form in which engines hold the policy's weights: their own precision, or FP8 blocks with scales.

trainer's tensor (float32) ──▶ the same tensor in the engines' dtype
                          or ▶ `weight` in float8_e4m3fn and `weight_scale_inv`, for FP8 engines
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlrun.converters.quantised.fp8 import quantise_weight
from rlrun.converters.quantised.fp8_weights import BLOCK
from rlrun.converters.quantised.kinds import PROJECTIONS
from rlrun.converters.tensors.content import InMemory
from rlrun.converters.tensors.precision import parse_dtype
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files


@dataclass(frozen=True, slots=True)
class Form:
    """Converts the trainer's tensors to those that engines hold."""

    dtype: torch.dtype
    kept: tuple[str, ...] | None = None
    """Modules that stay in `dtype` while all other projections are quantised to FP8; None: nothing is."""

    def pieces(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the names and tensors that an engine gets for one of the trainer's tensors."""
        if not self._is_quantised(name, tensor.ndim):
            yield name, tensor
            return
        for piece, content in quantise_weight(name, InMemory(tensor), "block").items():
            yield piece, content.rows(Files(), 0, content.tensor.shape[0])

    def described(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorInfo]:
        """Returns the dtype and shape of each of those pieces, by name."""
        if not self._is_quantised(name, len(shape)):
            return {name: TensorInfo(self.dtype, shape)}
        contents = quantise_weight(name, InMemory(torch.empty(shape, device="meta")), "block")
        return {piece: content.tensor for piece, content in contents.items()}

    def _is_quantised(self, name: str, dimensions: int) -> bool:
        if self.kept is None or dimensions != 2 or not name.endswith(PROJECTIONS):
            return False
        return not any(name.startswith(f"{module}.") for module in self.kept)


def engine_form(dtype: str, config: Mapping[str, Any]) -> Form:
    """Returns the form for an engine that computes in `dtype` and serves a model with this config.json.

    Raises ValueError if its weights are quantised in a way that rlrun cannot produce.
    """
    settings = config.get("quantization_config")
    if settings is None:
        return Form(parse_dtype(dtype))
    method, size = settings.get("quant_method"), settings.get("weight_block_size")
    if method != "fp8" or size != [BLOCK, BLOCK]:
        shown = f"{method}, weight_block_size {size}"
        raise ValueError(
            f"engines serve weights quantised as {shown}, but rlrun can only update weights in FP8 blocks of "
            f"{BLOCK} × {BLOCK}; convert the model with `rlrun convert --quantize fp8-block`"
        )
    return Form(parse_dtype(dtype), tuple(settings.get("modules_to_not_convert") or ()))
