"""Loads the C++ operators beside this file (`torch.ops.rlrun_trainer`), and decides where they can be used.

Fake tensors, which have a shape but no contents, get the shapes of the operators' results.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import register_fake

from rlrun.runner.host.cpp_build import TRAINER_OPERATORS, load_operators

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


def register_shapes() -> None:
    """Registers the operators with torch's fake tensors. Call it once, after the library is loaded."""
    for name, shape in _SHAPES.items():
        register_fake(f"rlrun_trainer::{name}", shape)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _rotate(x: Tensor, table: Tensor, back: bool) -> Tensor:
    return x.new_empty(x.shape)


def _silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)


def _silu_mul_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _softmax_statistics(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    return logits.new_empty((4, len(logits)), dtype=torch.float32)


def _softmax_gradients_(logits: Tensor, *arguments: object) -> None:
    return None


def _attention(q: Tensor, k: Tensor, v: Tensor, *settings: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *saved: object
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _add_weight_gradient_(*tensors: Tensor) -> None:
    return None


_SHAPES = {
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "rotate": _rotate,
    "silu_mul": _silu_mul,
    "silu_mul_backward": _silu_mul_backward,
    "softmax_statistics": _softmax_statistics,
    "softmax_gradients_": _softmax_gradients_,
    "attention": _attention,
    "attention_backward": _attention_backward,
    "add_weight_gradient_": _add_weight_gradient_,
}
