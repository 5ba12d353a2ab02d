"""Operators on a CPU whose result for a token does not depend on the batch that the token is computed in.

The trainer and the native engine both compute with them where `true_on_policy` is set. In every operator each
number of the result is summed in one fixed order, so it depends neither on the other rows, their number or
padding, nor on the number of threads; in attention, nor on whether a token is prefilled, decoded, or packed
with others. They are `torch.ops.rlrun_exact`, in float32 or bfloat16:

    pack         a matrix [N, K], once per version of the weights ─▶ [N, K / P, P], for `linear` only
    linear       x [T, K], a packed matrix, a bias, whether the result is float32 ─▶ [T, N]
    rms_norm     x [..., H], weight [H], epsilon ─▶ the same shape, and 1 / rms of each row
    rotate       x [T, heads, D], cosines and sines [T, D / 2] ─▶ the same shape
    silu_mul     gate and up [T, F] ─▶ silu(gate) · up
    log_softmax  logits [R, V], tokens and temperatures [R] ─▶ [3, R]: log-prob, log-sum-exp, entropy
    attention    q [T, heads, D], k and v [T, kv heads, D], lengths, `Forest.ends`, scale
                 ─▶ the shape of q, and the log-sum-exp [heads, T] of the scores

and for the engine's cache (`KVCache`) `rope_store`, `continued_attention` and `decode`.
"""

from functools import cache

import torch
from torch import Tensor
from torch.library import register_fake

from rlrun.runner.host.cpp_build import EXACT_OPERATORS, load_operators

operators = torch.ops.rlrun_exact


@cache
def load() -> None:
    """Loads the operators, compiled once for this machine. Raises ValueError if there is no compiler."""
    if not load_operators(EXACT_OPERATORS):
        raise ValueError(
            "true_on_policy computes with operators that are compiled for this machine, and no C++ compiler "
            "works here: install g++ or clang, or remove true_on_policy"
        )
    for name, shapes in _SHAPES.items():
        register_fake(f"rlrun_exact::{name}", shapes)


def _pack(weight: Tensor) -> Tensor:
    return weight.new_empty(weight.shape).unflatten(1, (-1, 4 // weight.itemsize))


def _linear(x: Tensor, packed: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    return x.new_empty((len(x), len(packed)), dtype=torch.float32 if wide else x.dtype)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1].numel(), dtype=torch.float32)


def _like(x: Tensor, *others: object) -> Tensor:
    return x.new_empty(x.shape)


def _log_softmax(logits: Tensor, *others: object) -> Tensor:
    return logits.new_empty((3, len(logits)), dtype=torch.float32)


def _attention(q: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


_SHAPES = {
    "pack": _pack,
    "linear": _linear,
    "rms_norm": _rms_norm,
    "rotate": _like,
    "silu_mul": _like,
    "log_softmax": _log_softmax,
    "attention": _attention,
}
"""The shapes of the results for fake tensors, which have a shape but no contents."""
