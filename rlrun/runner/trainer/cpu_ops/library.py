"""Loads the C++ operators beside this file (`torch.ops.rlrun_trainer`), and decides where they can be
used.
"""

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
    """Returns whether the C++ operators accept these tensors.

    They accept float32 and bfloat16, one dtype per call, and fake tensors, but no other subclasses. They are
    not used under torch.compile, which fuses plain operations itself.
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
    """Returns whether CUDA kernels compute with a tensor, or would in `as_on_gpu`."""
    return tensor.is_cuda or _PRETENDING.get()


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Within the block, treats fake tensors, which are on the CPU, as if they were on a GPU."""
    before = _PRETENDING.set(True)
    try:
        yield
    finally:
        _PRETENDING.reset(before)


@cache
def load() -> bool:
    """Loads the operators, compiled once for this machine; returns False if there is no compiler."""
    if loaded := load_operators(TRAINER_OPERATORS):
        register_shapes()
    return loaded
