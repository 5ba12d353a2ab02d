"""The forward passes of a process with `true_on_policy`: the operators that the native engine computes with.

The process chooses them once, for all its models (`compute_exactly`). Backward passes are those of the other
operators: only log-probs have to equal the engine's.
"""

from collections.abc import Callable
from typing import Any

import torch

from rlrun.runner.exact_ops.operators import load as load_exact
from rlrun.runner.exact_ops.operators import operators as exact
from rlrun.runner.trainer.cpu_ops.library import load
from rlrun.runner.trainer.cpu_ops.products import linear, weight_gradient

_exactly = False


def compute_exactly(*, value: bool = True) -> None:
    """Makes all models of this process compute as the engine does. Raises ValueError where they cannot."""
    global _exactly  # noqa: PLW0603 (as torch.use_deterministic_algorithms: a setting of the process)
    if value:
        load_exact()
        if not load():
            raise ValueError(
                "true_on_policy: the trainer's operators could not be compiled; its log says why: install "
                "g++ or clang, or remove true_on_policy"
            )
    _exactly = value


def computes_exactly() -> bool:
    """Returns whether this process computes as the engine does."""
    return _exactly


def exact_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns `input @ weight.T + bias` as the engine computes it."""
    output: torch.Tensor = _ExactLinear.apply(input, weight, bias)
    return output


def exact_product(weight: torch.Tensor, *, wide: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the function x ↦ `x @ weight.T`, without a gradient; `wide`: in float32."""
    packed = exact.pack(weight)
    return lambda x: exact.linear(x, packed, None, wide)


def exact_log_softmax(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns the targets' log-probs, the log-sum-exps and the entropies of logits / temperature, `[3, R]`
    float32.
    """
    temperatures = logits.new_full((len(logits),), temperature, dtype=torch.float32)
    result: torch.Tensor = exact.log_softmax(logits, targets, temperatures)
    return result


class _ExactLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        product: torch.Tensor = exact.linear(input.flatten(0, -2), exact.pack(weight), bias, False)
        return product.unflatten(0, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        of_input, of_weight, of_bias = ctx.needs_input_grad
        rows, gradients = input.flatten(0, -2), grad.flatten(0, -2)
        return (
            linear(grad, weight.t()) if of_input else None,
            weight_gradient(gradients, rows) if of_weight else None,
            gradients.sum(0) if of_bias else None,
        )
