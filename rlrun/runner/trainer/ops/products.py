"""Products of matrices on a CPU, each by the fastest implementation for its precision and shape."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from rlrun.runner.kernels.operators import operators, packs
from rlrun.runner.trainer.compat.kernels import HAS_ONEDNN, onednn_linear
from rlrun.runner.trainer.ops.library import serves, serves_in_order


def linear_product(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns `input @ weight.T + bias`; on a CPU as the engine computes it, or by oneDNN in float32."""
    if _multiplies_in_order(input, weight):
        product: torch.Tensor = _InOrder.apply(input, weight, bias)
        return product
    if HAS_ONEDNN and input.dtype == torch.float32 and not torch.compiler.is_compiling():
        output: torch.Tensor = _OneDnn.apply(input, weight)
        return output if bias is None else output + bias
    return functional.linear(input, weight, bias)


def ordered_product(weight: torch.Tensor, *, wide: bool) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Returns the function x ↦ `x @ weight.T`, without a gradient, as the engine computes it; None where it
    does not compute in a fixed order. `wide`: in float32.
    """
    if not _multiplies_in_order(weight):
        return None
    return lambda x: operators.linear(x, weight, None, wide)


def linear(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns `input @ weight.T` without a gradient; in float32 by oneDNN, which refuses empty tensors."""
    if HAS_ONEDNN and input.dtype == torch.float32 and input.numel() and not torch.compiler.is_compiling():
        return onednn_linear(input, weight)
    return functional.linear(input, weight)


def weight_gradient(gradients: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Returns `gradients.T @ input`, the gradient of a weight, for `[T, out]` gradients and `[T, in]` input.

    With these strides libraries reach two thirds of their speed in float32, and four fifths in bfloat16. Our
    operator for float32 loses next to nothing. One for bfloat16 gained nothing, because its right factor has
    to be packed as well.
    """
    if _has_operator(gradients, input):
        sums = input.new_zeros(gradients.shape[1], input.shape[1])
        return add_weight_gradient_(sums, gradients, input)
    return linear(gradients.t(), input.t())


def add_weight_gradient_(sums: torch.Tensor, gradients: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Adds `weight_gradient(gradients, input)` to `sums` without another tensor of that size, and returns
    them.
    """
    if not _has_operator(gradients, input):
        return sums.addmm_(gradients.t(), input)
    operators.add_weight_gradient_(sums, gradients.contiguous(), input.contiguous())
    return sums


def _has_operator(gradients: torch.Tensor, input: torch.Tensor) -> bool:
    return gradients.dtype == torch.float32 and serves(gradients, input)


def _multiplies_in_order(*tensors: torch.Tensor) -> bool:
    """Returns whether products with the last of these tensors are summed in the engine's order."""
    return serves_in_order(*tensors) and packs(tensors[-1])


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns the gradients of a product's input and weight."""
    input, weight = ctx.saved_tensors
    of_input, of_weight, *_ = ctx.needs_input_grad
    rows, gradients = input.flatten(0, -2), grad.flatten(0, -2)
    return (
        linear(grad, weight.t()) if of_input else None,
        weight_gradient(gradients, rows) if of_weight else None,
    )


class _InOrder(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        rows = input.flatten(0, -2)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        product: torch.Tensor = operators.linear(rows, weight, bias, False)
        return product.unflatten(0, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_bias = grad.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        return *_backward(ctx, grad), of_bias


class _OneDnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        return onednn_linear(input, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return _backward(ctx, grad)
