"""Arithmetic on large tensors that torch compiles into one kernel on GPUs.

Written as plain operations, each would read and write the whole tensor once more. On a GPU most of a step
beside products and attention is that traffic (docs/gpu.md).
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

from rlrun.runner.host.cpp_build import find_compiler
from rlrun.runner.trainer.compat.device import has_triton

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def fused(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Has a function that computes no gradient run compiled where its first argument is a tensor that `fuses`
    accepts; elsewhere it runs as it is written.

    Compiled, it rounds to half precision at its end only, not after each operation.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        first = args[0]
        assert isinstance(first, torch.Tensor)
        if not fuses(first):
            return function(*args, **kwargs)
        # without a gradient: torch would compile once more for tensors that require one
        plain = (arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args)
        return compiled(function)(*plain, **kwargs)

    return call


@cache
def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the function as torch compiles it at its first call, and once more for sizes that change."""
    result: Callable[..., Result] = torch.compile(function)
    return result


def fuses(tensor: torch.Tensor) -> bool:
    """Returns whether functions of this tensor are compiled: it is on a GPU, in half precision.

    float32 is left out: models that train in it are so small that launches, not memory, take the time.
    Under torch.compile plain operations are fused anyway.
    """
    return (
        tensor.is_cuda
        and type(tensor) is torch.Tensor  # neither fake nor distributed
        and tensor.dtype.itemsize == 2
        and not torch.compiler.is_compiling()
        and _can_compile()
    )


@cache
def _can_compile() -> bool:
    """Returns whether torch can compile for this GPU: Triton's launchers need a C compiler as well."""
    return has_triton() and find_compiler() is not None
