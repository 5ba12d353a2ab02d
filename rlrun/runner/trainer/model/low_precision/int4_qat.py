"""Matrices that are rounded to four-bit integers for each product (`trainer.precision = "int4_qat"`).

    output          inputs  ×  rounded matrix
    input's gradient   gradients  ×  rounded matrix
    matrix's gradient  gradients  ×  inputs          applied to the matrix itself (straight-through estimator)

Engines that hold the same matrices in INT4 multiply with the same numbers, so that they generate with the
policy that is trained (quantisation-aware training, arXiv:1712.05877). Only the matrix is saved for the
backward pass, which rounds it again: a rounded copy of every layer would take as much memory as the model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from rlrun.converters.tensors.int4_groups import rounded_to_int4
from rlrun.models.low_precision import LowPrecision
from rlrun.runner.trainer.compat.modules import Linear
from rlrun.runner.trainer.model.layers import Experts


class Int4Matrix(Linear):
    """A linear layer whose matrix is rounded; groups of numbers with one scale do not cross ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        precision: LowPrecision

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.precision = config.precision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        output = int4_product(input, self.weight, self.precision.int4_group)
        return output if self.bias is None else output + self.bias


class Int4Experts(Experts):
    """Experts whose matrices are rounded."""

    @dataclass(kw_only=True, slots=True)
    class Config(Experts.Config):
        precision: LowPrecision

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.precision = config.precision

    def _product(self, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Multiplies one expert's tokens on a CPU."""
        return int4_product(tokens, weight, self.precision.int4_group)

    def _grouped_mm(self, *, A: torch.Tensor, B_t: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        """Multiplies all experts' tokens on a GPU."""
        product: torch.Tensor = _GroupedProduct.apply(A, B_t.transpose(1, 2), offs, self.precision.int4_group)
        return product


def int4_product(input: torch.Tensor, weight: torch.Tensor, group: int) -> torch.Tensor:
    """Returns `input @ weight.T` with `weight` `[out, in]` rounded in groups of `group` numbers of a row."""
    product: torch.Tensor = _Product.apply(input, weight, group)
    return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, group: int) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        ctx.group = group
        return linear(input, rounded_to_int4(weight, group))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        input, weight = ctx.saved_tensors
        of_input, of_weight, _ = ctx.needs_input_grad
        return (
            grad @ rounded_to_int4(weight, ctx.group) if of_input else None,
            grad.flatten(0, -2).t() @ input.flatten(0, -2) if of_weight else None,
            None,
        )


class _GroupedProduct(torch.autograd.Function):
    """The products of each expert's rows of `[R, in]`, which end at `ends`, with its matrix of
    `[E, out, in]`.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, group: int
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weights, ends)
        ctx.group = group
        return torch._grouped_mm(rows, rounded_to_int4(weights, group).transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        rows, weights, ends = ctx.saved_tensors
        of_rows, of_weights, *_ = ctx.needs_input_grad
        grad = grad.contiguous()
        return (
            torch._grouped_mm(grad, rounded_to_int4(weights, ctx.group), offs=ends) if of_rows else None,
            torch._grouped_mm(grad.t(), rows, offs=ends) if of_weights else None,
            None,
            None,
        )
