"""The C++ operators beside this file, as `torch.ops.rlrun_trainer`, where they can serve."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rlrun.runner.host.cpp_build import TRAINER_OPERATORS, load_operators
from rlrun.runner.trainer.cpu_ops.shapes import register_shapes

operators = torch.ops.rlrun_trainer
_DTYPES = (torch.float32, torch.bfloat16)
_PRETENDING = ContextVar("pretending", default=False)


def serves(*tensors: torch.Tensor) -> bool:
    """Whether the C++ operators can take these tensors.

    They know float32 and bfloat16, one type a call, and of torch's subclasses only what has no content. Where
    torch compiles, it fuses plain operations itself.
    """
    if torch.compiler.is_compiling():
        return False
    return (
        not _PRETENDING.get()
        and all(
            type(tensor) in (torch.Tensor, torch.nn.Parameter, FakeTensor)
            and tensor.device.type == "cpu"
            and tensor.dtype in _DTYPES
            and tensor.dtype == tensors[0].dtype
            for tensor in tensors
        )
        and load()
    )


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether CUDA's kernels compute with a tensor."""
    return tensor.is_cuda or _PRETENDING.get()


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Choose kernels for tensors without content, which lie on the CPU, as if they lay on a GPU."""
    before = _PRETENDING.set(True)
    try:
        yield
    finally:
        _PRETENDING.reset(before)


@cache
def serves_attention(dtype: torch.dtype) -> bool:
    """Whether this CPU has the matrix kernels that the attention operator needs in `dtype`."""
    return dtype != torch.bfloat16 or operators.has_bfloat16_kernels()


@cache
def load() -> bool:
    """Make the operators available, compiled once for this machine; False where there is no compiler."""
    if loaded := load_operators(TRAINER_OPERATORS):
        register_shapes()
    return loaded
