"""Decides where the trainer computes with the C++ operators (`rlrun.runner.kernels.operators`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rlrun.runner.kernels.operators import in_order, load

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


def serves_in_order(*tensors: torch.Tensor) -> bool:
    """Returns whether the operators that sum in the engine's order accept these tensors, and are chosen."""
    return serves(*tensors) and in_order(tensors[0].dtype)


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
