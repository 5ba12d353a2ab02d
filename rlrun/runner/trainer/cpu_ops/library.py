"""The C++ operators beside this file, as `torch.ops.rlrun_trainer`, where they can serve."""

from functools import cache
from pathlib import Path

import torch

from rlrun.runner.cpp_build import load_operators

operators = torch.ops.rlrun_trainer
_DTYPES = (torch.float32, torch.bfloat16)


def serves(*tensors: torch.Tensor) -> bool:
    """Whether the C++ operators can take these tensors; compiles them at the first plain CPU tensor.

    They know float32 and bfloat16, one type a call, and no subclasses (DTensor, FakeTensor).
    """
    return (
        all(
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.device.type == "cpu"
            and tensor.dtype in _DTYPES
            and tensor.dtype == tensors[0].dtype
            for tensor in tensors
        )
        and _loaded()
    )


@cache
def serves_attention(dtype: torch.dtype) -> bool:
    """Whether this CPU has the matrix kernels that the attention operator needs in `dtype`."""
    return dtype != torch.bfloat16 or operators.has_bfloat16_kernels()


@cache
def _loaded() -> bool:
    return load_operators(Path(__file__).with_name("operators.cpp"))
