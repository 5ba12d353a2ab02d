"""RMSNorm, rotary position embedding and gated activation: one pass over memory in each direction.

They compute in float32 and round once at the end: on a CPU by C++ operators, on a GPU by what torch compiles
(`compat.fusion`) and torch's own RMSNorm. Other dtypes, and machines without a compiler, use plain torch
operations.
"""

from typing import Any

import torch
from torch.nn import functional

from rlrun.runner.kernels.operators import operators
from rlrun.runner.trainer.compat.fusion import fused
from rlrun.runner.trainer.ops.library import serves


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang, Sennrich 2019,
    arXiv:1910.07467).
    """
    if not serves(x, weight):
        return functional.rms_norm(x, weight.shape, weight, eps)
    result: torch.Tensor = _RMSNorm.apply(x.contiguous(), weight, eps)
    return result


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs (i, i + H/2) of `[T, N, H]` by each token's angles (Su et al. 2021,
    arXiv:2104.09864).

    `table` `[T, 2, H]` float32 has the cosines, in two equal halves, then the sines; it gets no gradient.
    """
    if torch.compiler.is_compiling():
        return _rotated_plainly(x, table, back=False)
    result: torch.Tensor = _Rotate.apply(x, table)
    return result


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Returns silu(gate) · up (Shazeer 2020, arXiv:2002.05202)."""
    if torch.compiler.is_compiling():
        return _silu_mul_plainly(gate, up)
    result: torch.Tensor = _SiluMul.apply(gate, up)
    return result


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        y, scales = operators.rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, scales)
        result: torch.Tensor = y
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *operators.rms_norm_backward(grad.contiguous(), *ctx.saved_tensors), None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(table)
        return _rotated(x, table, back=False)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (table,) = ctx.saved_tensors
        return _rotated(grad, table, back=True), None


def _rotated(x: torch.Tensor, table: torch.Tensor, *, back: bool) -> torch.Tensor:
    """Rotates by a table's angles, or back."""
    if not serves(x):
        return _rotated_plainly(x, table, back=back)
    half = x.shape[-1] // 2
    table = table.contiguous()
    rotated: torch.Tensor = operators.rotate(x.contiguous(), table[:, 0, :half], table[:, 1, :half], back)
    return rotated


@fused
def _rotated_plainly(x: torch.Tensor, table: torch.Tensor, *, back: bool) -> torch.Tensor:
    cosine, sine = table[:, None, 0], table[:, None, 1]
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((second, -first) if back else (-second, first), dim=-1)
    return (wide * cosine + turned * sine).type_as(x)


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        if not serves(gate, up):
            return _silu_mul_plainly(gate, up)
        product: torch.Tensor = operators.silu_mul(
            gate.contiguous().flatten(0, -2), up.contiguous().flatten(0, -2)
        )
        return product.view_as(gate)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        gate, up = ctx.saved_tensors
        if not serves(gate, up):
            return _silu_mul_gradients(grad, gate, up)
        return operators.silu_mul_backward(grad.contiguous(), gate.contiguous(), up.contiguous())


@fused
def _silu_mul_plainly(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


@fused
def _silu_mul_gradients(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradients of `gate` and `up`."""
    wide = gate.float()
    share = torch.sigmoid(wide)
    silu = wide * share
    slope = share + silu * (1 - share)
    product = grad.float() * up.float()
    return (product * slope).type_as(gate), (grad.float() * silu).type_as(up)
