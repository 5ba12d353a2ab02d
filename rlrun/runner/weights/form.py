"""The form in which engines hold the policy's weights: their own precision, or FP8 or INT4 with scales.

trainer's tensor (float32) ──▶ the same tensor in the engines' dtype
                          or ▶ `weight` in float8_e4m3fn and `weight_scale_inv`, for FP8 engines
                          or ▶ `weight_packed`, `weight_scale` and `weight_shape`, for INT4 engines
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlrun.converters.quantised.fp8 import quantise_weight
from rlrun.converters.quantised.fp8_weights import BLOCK
from rlrun.converters.quantised.int4 import FORMAT, group_size, is_ignored, pack_weight
from rlrun.converters.tensors.content import Content, InMemory
from rlrun.converters.tensors.precision import keeps_precision, parse_dtype
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files
from rlrun.models.decoder_config import quantisation
from rlrun.models.low_precision import PROJECTIONS, is_int4_matrix


@dataclass(frozen=True, slots=True)
class Form:
    """Converts the trainer's tensors to those that engines hold."""

    dtype: torch.dtype
    kept: tuple[str, ...] | None = None
    """Modules that stay in `dtype` while all other projections are quantised to FP8; None: nothing is."""
    int4_group: int | None = None
    """The matrices of routed experts are packed in INT4, with a scale per this many numbers; None: not."""

    def pieces(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the names and tensors that an engine gets for one of the trainer's tensors."""
        if not self._is_quantised(name, tensor.ndim):
            yield name, tensor
            return
        for piece, content in self._quantised(name, InMemory(tensor)).items():
            yield piece, content.rows(Files(), 0, content.tensor.shape[0])

    def described(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorInfo]:
        """Returns the dtype and shape of each of those pieces, by name."""
        if not self._is_quantised(name, len(shape)):
            return {name: TensorInfo(torch.float32 if keeps_precision(name) else self.dtype, shape)}
        contents = self._quantised(name, InMemory(torch.empty(shape, device="meta")))
        return {piece: content.tensor for piece, content in contents.items()}

    def _quantised(self, name: str, content: Content) -> dict[str, Content]:
        if self.int4_group is not None:
            return pack_weight(name, content, self.int4_group)
        return quantise_weight(name, content, "block")

    def _is_quantised(self, name: str, dimensions: int) -> bool:
        if self.int4_group is not None:
            return dimensions == 2 and is_int4_matrix(name, routed=True)
        if self.kept is None or dimensions != 2 or not name.endswith(PROJECTIONS):
            return False
        return not any(name.startswith(f"{module}.") for module in self.kept)


def engine_form(dtype: str, config: Mapping[str, Any], names: Iterable[str]) -> Form:
    """Returns the form for an engine that computes in `dtype` and serves a model with this config.json, whose
    tensors have these names.

    Raises ValueError if its weights are quantised in a way that rlrun cannot produce.
    """
    settings = quantisation(config)
    if not settings:
        return Form(parse_dtype(dtype))
    if settings.get("format") == FORMAT:
        _check_packed(settings, names)
        return Form(parse_dtype(dtype), int4_group=group_size(settings))
    method, size = settings.get("quant_method"), settings.get("weight_block_size")
    if method != "fp8" or size != [BLOCK, BLOCK]:
        shown = f"{method}, weight_block_size {size}"
        raise ValueError(
            f"engines serve weights quantised as {shown}, but rlrun can only update weights in FP8 blocks of "
            f"{BLOCK} × {BLOCK}, or in INT4; convert the model with `rlrun convert --quantize fp8-block`"
        )
    kept = settings.get("modules_to_not_convert") or ()
    if not isinstance(kept, list | tuple):
        raise ValueError(f"quantization_config has modules_to_not_convert = {kept!r}; it must be a list")
    return Form(parse_dtype(dtype), tuple(kept))


def _check_packed(settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises ValueError unless a folder in INT4 has in four bits what the trainer rounds: routed experts."""
    for name in names:
        is_packed = not is_ignored(name.removesuffix(".weight"), settings)
        if name.endswith(PROJECTIONS) and is_packed != is_int4_matrix(name, routed=True):
            has = "has" if is_packed else "does not have"
            raise ValueError(
                f"engine.model {has} {name} in INT4, and the trainer rounds exactly the matrices of routed "
                "experts: convert the policy's folder with `rlrun convert hf-to-hf --quantize int4-group`"
            )
