"""torchtitan's low-precision converters, and torchao's products in low precision.

torchtitan's converters choose modules by parts of their names, and accept a CPU only with a recipe that is
not the one asked for. Here they convert exactly the named matrices, and compute the same recipe on a CPU.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch

from rlrun.models.low_precision import LowPrecision
from rlrun.runner.trainer.compat.device import ON_CPU

# isort: split
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import matmul_with_hp_or_float8_args
from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference
from torchtitan.components.quantization import (
    Float8Linear,
    Float8LinearConverter,
    MXFP8Linear,
    MXFP8LinearConverter,
    NVFP4Linear,
    NVFP4LinearConverter,
)
from torchtitan.components.quantization.utils import swap_token_dispatcher
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.protocols.model import ModelConfigConverter

__all__ = [
    "Float8Linear",
    "Linear",
    "MXFP8Linear",
    "NVFP4Linear",
    "convert_experts",
    "convert_float8",
    "convert_mxfp8",
    "convert_nvfp4",
    "float8_product",
    "grouped_product",
    "mxfp8_product",
    "replace_matrices",
]

TOKENS_OF_GROUP = 16
"""Grouped products in float8 need a multiple of this many rows for each expert."""


class _NamedFloat8(Float8LinearConverter):
    def __init__(self, recipe: str, names: Collection[str]) -> None:
        super().__init__(Float8LinearConverter.Config(recipe_name=recipe, emulate=ON_CPU))
        self.torchao_config = Float8LinearConfig.from_recipe_name(recipe)  # torchtitan's emulation ignores it
        self.filter_fn = lambda config, name: name in names


def convert_float8(config: Any, recipe: str, names: Collection[str]) -> Any:
    """Returns a model config whose named matrices multiply in float8; a CPU does so without emulation."""
    return _NamedFloat8(recipe, names).convert(config)


class _EmulatedMXFP8Linear(MXFP8Linear):
    """torchao's MXFP8 matrix that rounds its factors and multiplies them in bfloat16."""

    @dataclass(kw_only=True, slots=True)
    class Config(MXFP8Linear.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.kernel_preference = KernelPreference.EMULATED


def convert_mxfp8(config: Any, names: Collection[str]) -> Any:
    """Returns a model config whose named matrices multiply in MXFP8, which a CPU emulates."""
    if ON_CPU:
        return replace_matrices(config, _EmulatedMXFP8Linear, names)
    return MXFP8LinearConverter(MXFP8LinearConverter.Config(fqns=sorted(names))).convert(config)


def convert_nvfp4(config: Any, names: Collection[str]) -> Any:
    """Returns a model config whose named matrices multiply in NVFP4. Raises ValueError without its GPU."""
    return NVFP4LinearConverter(NVFP4LinearConverter.Config(fqns=sorted(names))).convert(config)


class _MatrixConverter(ModelConfigConverter):
    def __init__(self, module: Any, names: Collection[str]) -> None:
        self._module, self._names = module, names

    def convert(self, model_config: Any) -> Any:
        for name, matrix, parent, attribute in list(model_config.traverse(Linear.Config)):
            if name in self._names:
                settings = {key: getattr(matrix, key) for key in ("in_features", "out_features", "bias")}
                setattr(parent, attribute, self._module.Config(**settings, param_init=matrix.param_init))
        return model_config


def replace_matrices(config: Any, module: Any, names: Collection[str]) -> Any:
    """Returns a model config whose named matrices are of another module's class."""
    return _MatrixConverter(module, names).convert(config)


class _ExpertsConverter(ModelConfigConverter):
    def __init__(self, modules: dict[type, Any], precision: LowPrecision, layers: Collection[str]) -> None:
        self._modules, self._precision, self._layers = modules, precision, layers

    def convert(self, model_config: Any) -> Any:
        for name, experts, parent, attribute in list(model_config.traverse(GroupedExperts.Config)):
            if name not in self._layers:
                continue
            if not ON_CPU and self._precision.name == "float8" and not self._precision.blockwise:
                swap_token_dispatcher(parent, TOKENS_OF_GROUP)  # torchao's other products pad by themselves
            module = self._modules[type(experts)._owner]
            settings = {field.name: getattr(experts, field.name) for field in fields(experts)}
            setattr(parent, attribute, module.Config(**settings, precision=self._precision))
        return model_config


def convert_experts(
    config: Any, modules: dict[type, Any], precision: LowPrecision, names: Collection[str]
) -> Any:
    """Returns a model config whose named experts are of the classes that `modules` gives for theirs.

    torchtitan's converter of float8 experts wraps their parameters in a subclass of tensors, of which masters
    and checkpoints would know nothing.
    """
    return _ExpertsConverter(modules, precision, names).convert(config)


def float8_product(input: torch.Tensor, weight: torch.Tensor, recipe: str) -> torch.Tensor:
    """Returns `input @ weight.T` of matrices in float8, by torchao's own function of a linear layer."""
    layer = _float8_layer(recipe)
    arguments = layer.linear_mm_config, layer.config
    product: torch.Tensor = matmul_with_hp_or_float8_args.apply(input, weight.t(), *arguments)
    return product


@cache
def _float8_layer(recipe: str) -> Any:
    """Returns a layer without values, whose settings are those of all layers."""
    with torch.device("meta"):
        config = Float8LinearConfig.from_recipe_name(recipe)
        return Float8Linear.Config(in_features=1, out_features=1, _torchao_config=config).build()


def mxfp8_product(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns `input @ weight.T` in emulated MXFP8; 32 must divide the number of rows."""
    product: torch.Tensor = _to_mxfp8_then_scaled_mm(
        input,
        weight,
        kernel_preference=KernelPreference.EMULATED,
        scale_calculation_mode=ScaleCalculationMode.RCEIL,
    )
    return product


def grouped_product(
    precision: LowPrecision, rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """Returns the products of each expert's rows `[R, K]` with its matrix of `[E, K, N]`, on a GPU."""
    if precision.name == "mxfp8":
        from torchao.prototype.moe_training import _to_mxfp8_then_scaled_grouped_mm

        return _to_mxfp8_then_scaled_grouped_mm(rows, weights, ends, pad_token_groups_for_grouped_mm=True)
    if precision.blockwise:
        from torchao.prototype.moe_training.blockwise_fp8.grouped_mm import (
            _to_fp8_blockwise_then_scaled_grouped_mm,
        )

        return _to_fp8_blockwise_then_scaled_grouped_mm(rows, weights, ends)
    from torchao.prototype.moe_training import _to_fp8_rowwise_then_scaled_grouped_mm

    return _to_fp8_rowwise_then_scaled_grouped_mm(rows, weights, ends, pad_token_groups_for_grouped_mm=False)
