"""The C++ operators of trainer and native engine on a CPU, `torch.ops.rlrun`, in float32 or bfloat16.

Forward passes are *in order*: each number of a result is summed in one fixed order, so it depends neither on
the other rows, their number or padding, nor on the number of threads; in attention, nor on whether a token is
prefilled, decoded, or packed with others. Where both sides compute with them, the trainer's log-probs are the
engine's, bit for bit.

    pack         a matrix [N, K], once per version of the weights ─▶ [N, K / P, P], for `linear` only
    linear       x [T, K], a matrix [N, K], packed or not, a bias, whether the result is float32 ─▶ [T, N]
    rms_norm     x [..., H], weight [H], epsilon ─▶ the same shape, and 1 / rms of each row
    rotate       x [T, heads, D], cosines and sines [T, D / 2], whether backwards ─▶ the same shape
    silu_mul     gate and up [T, F] ─▶ silu(gate) · up
    log_softmax  logits [R, V], tokens and temperatures [R]
                 ─▶ [4, R] float32: log-prob, log-sum-exp, entropy, logit / temperature of the token
    attention    q [T, heads, D], k and v [T, kv heads, D], lengths, `Forest.ends`, scale
                 ─▶ the shape of q, and the log-sum-exp [heads, T] of the scores
    block_attention   the same with windows, by torch's small matrix products: in another order

For gradients: `rms_norm_backward`, `silu_mul_backward`, `softmax_gradients_`, `attention_backward`,
`add_weight_gradient_`. For the engine's cache (`KVCache`) `rope_store`, `continued_attention` and `decode`;
`sample` and `sample_with_masks` draw tokens, with the log-probs of `log_softmax`.
"""

from functools import cache

import torch
from torch import Tensor
from torch.library import register_fake

from rlrun.runner.host.cpp_build import OPERATORS, load_operators

operators = torch.ops.rlrun

_order: bool | None = None
"""Whether all forward passes of this process are in order; None: where that takes no longer."""


@cache
def load() -> bool:
    """Loads the operators, compiled once for this machine; returns False if there is no compiler."""
    if loaded := load_operators(OPERATORS):
        for name, shapes in _SHAPES.items():
            register_fake(f"rlrun::{name}", shapes)
    return loaded


def promise_order() -> None:
    """Makes all forward passes of this process in order, whatever it costs (`true_on_policy`).

    Raises ValueError if there is no compiler.
    """
    if not load():
        raise ValueError(
            "true_on_policy computes with operators that are compiled for this machine, and no C++ compiler "
            "works here (the log says why): install g++ or clang, or remove true_on_policy"
        )
    set_order(value=True)


def set_order(*, value: bool | None) -> None:
    """Makes all forward passes of this process in order, or none; None: where that takes no longer."""
    global _order  # noqa: PLW0603 (as torch.use_deterministic_algorithms: a setting of the process)
    _order = value


def in_order(dtype: torch.dtype) -> bool:
    """Returns whether products and attention of forward passes are in order; all other operators always are.

    Trainer and engine decide by this function. By default they are in order where a training step takes no
    longer than with oneDNN's: in bfloat16 it takes 4 % longer. Call it once `load` has returned True.
    """
    return dtype == torch.float32 and has_fast_panels(dtype) if _order is None else _order


def packs(matrix: Tensor) -> bool:
    """Returns whether `linear` and `pack` take a matrix: in bfloat16 it needs an even number of columns."""
    return bool(matrix.dtype == torch.float32 or matrix.shape[1] % 2 == 0)


@cache
def has_fast_panels(dtype: torch.dtype) -> bool:
    """Returns whether products with packed matrices are faster on this machine than oneDNN's, for few
    rows.
    """
    fast: bool = operators.has_fast_panels(dtype)
    return fast


def _pack(weight: Tensor) -> Tensor:
    return weight.new_empty(weight.shape).unflatten(1, (-1, 4 // weight.itemsize))


def _linear(x: Tensor, packed: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    return x.new_empty((len(x), len(packed)), dtype=torch.float32 if wide else x.dtype)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1].numel(), dtype=torch.float32)


def _like(x: Tensor, *others: object) -> Tensor:
    return x.new_empty(x.shape)


def _like_second_and_third(grad: Tensor, x: Tensor, y: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), y.new_empty(y.shape)


def _log_softmax(logits: Tensor, *others: object) -> Tensor:
    return logits.new_empty((4, len(logits)), dtype=torch.float32)


def _attention(q: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *saved: object
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _in_place(*arguments: object) -> None:
    return None


_SHAPES = {
    "pack": _pack,
    "linear": _linear,
    "rms_norm": _rms_norm,
    "rms_norm_backward": _like_second_and_third,
    "rotate": _like,
    "silu_mul": _like,
    "silu_mul_backward": _like_second_and_third,
    "log_softmax": _log_softmax,
    "softmax_gradients_": _in_place,
    "attention": _attention,
    "block_attention": _attention,
    "attention_backward": _attention_backward,
    "add_weight_gradient_": _in_place,
}
"""The shapes of the trainer's results for fake tensors, which have a shape but no contents."""
