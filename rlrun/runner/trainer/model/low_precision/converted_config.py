"""Converts a model config so that its layers multiply in low precision (`trainer.precision`).

model config ─▶ convert_to_low_precision ─▶ set_sharding ─▶ adapters ─▶ build

Which matrices are converted is decided in `rlrun.models.low_precision`; `rlrun plan` lists the same ones.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from rlrun.models.architecture import Architecture
from rlrun.models.low_precision import LowPrecision, check_low_precision, layer_matrices
from rlrun.runner.trainer.compat.converted_modules import convert_experts, replace_matrices
from rlrun.runner.trainer.compat.device import ON_CPU
from rlrun.runner.trainer.model.decoder_parts import decoder_parts
from rlrun.runner.trainer.model.layers import Experts
from rlrun.runner.trainer.model.low_precision.blockwise import BlockwiseMatrix
from rlrun.runner.trainer.model.low_precision.int4_qat import Int4Experts, Int4Matrix
from rlrun.specs.sections.trainer import ParallelSpec


def convert_to_low_precision(
    config: Any, model: Architecture, precision: LowPrecision, parallel: ParallelSpec
) -> Any:
    """Returns the config with converted matrices and experts; call it before sharding is set.

    Raises ValueError if torchao is not installed, the GPU has no such products, or no matrix can be
    converted.
    """
    check_gpu(precision)
    degrees = {"tensor": parallel.tensor, "expert": parallel.expert}
    check_low_precision(model, precision, **degrees)
    dense, experts = converted_modules(model, precision, parallel)
    if precision.rounds_weights_alone:
        config = replace_matrices(config, Int4Matrix, dense, precision=precision)
        return convert_experts(config, {Experts: Int4Experts}, precision, experts)
    check_torchao()
    from rlrun.runner.trainer.compat import low_precision as converters

    if precision.blockwise:
        config = replace_matrices(config, BlockwiseMatrix, dense)
    elif precision.name == "float8":
        config = converters.convert_float8(config, precision.recipe, dense)
    elif precision.name == "mxfp8":
        config = converters.convert_mxfp8(config, dense)
    else:
        config = converters.convert_nvfp4(config, dense)
    return convert_experts(config, decoder_parts(model).low_precision_experts(), precision, experts)


def converted_modules(
    model: Architecture, precision: LowPrecision, parallel: ParallelSpec
) -> tuple[set[str], set[str]]:
    """Returns torchtitan's names of the converted linear layers, and of the converted experts.

    Experts are one module, which is converted if all of its matrices can be.
    """
    matrices = layer_matrices(model, precision, tensor=parallel.tensor, expert=parallel.expert)
    dense: set[str] = set()
    experts: set[str] = set()
    unconverted: set[str] = set()
    for matrix in matrices:
        module = matrix.tensor.parameter.rpartition(".")[0]
        if matrix.tensor.is_routed_expert:
            (unconverted if matrix.reason else experts).add(module)
        elif not matrix.reason:
            # keys and values share a config
            dense.add(f"{module[:-1]}kv" if module.endswith(("wk", "wv")) else module)
    return dense, experts - unconverted


def check_torchao() -> None:
    """Raises ValueError if torchao is not installed."""
    if find_spec("torchao") is None:
        raise ValueError("trainer.precision needs torchao: pip install 'rlrun[low-precision]'")


def check_gpu(precision: LowPrecision) -> None:
    """Raises ValueError if this rank's GPU has no products in the precision; a CPU passes."""
    if ON_CPU:
        return
    found, needed = torch.cuda.get_device_capability(), precision.capability
    if found < needed:
        raise ValueError(
            f'trainer.precision = "{precision.name}": {precision} needs a GPU of compute capability '
            f"{needed[0]}.{needed[1]}, and {torch.cuda.get_device_name()} has {found[0]}.{found[1]}: use "
            "another GPU, or remove trainer.precision"
        )


def fill_buffers(decoder: nn.Module, device: torch.device) -> None:
    """Fills the buffers of NVFP4 matrices, which are not in checkpoints: the seed of their stochastic
    rounding, and the signs of their Hadamard transform.
    """
    from rlrun.runner.trainer.compat.low_precision import NVFP4Linear

    for module in decoder.modules():
        if isinstance(module, NVFP4Linear):
            module._init_self_buffers(buffer_device=device)
