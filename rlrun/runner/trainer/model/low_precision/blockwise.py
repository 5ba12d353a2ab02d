"""Products in float8 with the scales of FP8 checkpoints: one per 128 × 128 block of a matrix.

    output             rows of the input in pieces of 128        ×  blocks of the matrix
    input's gradient   rows of the gradient in pieces of 128     ×  blocks of the matrix
    matrix's gradient  columns of the gradient in pieces of 128  ×  columns of the input in pieces of 128

Each piece and block has its own scale, so that its largest number is float8's largest (DeepSeek-V3,
arXiv:2412.19437, section 3.3). A GPU runs torchao's kernels; a CPU rounds in the same way and multiplies in
float32. Matrices are rounded as `rlrun convert --quantize fp8-block` and updates of FP8 engines round them.
"""

from dataclasses import dataclass
from typing import Any

import torch

from rlrun.converters.quantised.fp8_weights import BLOCK
from rlrun.runner.trainer.compat.modules import Linear
from rlrun.runner.trainer.ops.library import on_gpu

_MAX = torch.finfo(torch.float8_e4m3fn).max


class BlockwiseMatrix(Linear):
    """A linear layer in float8 with a scale per block."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        output = blockwise_product(input, self.weight)
        return output if self.bias is None else output + self.bias


def blockwise_product(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns `input @ weight.T` in float8; 128 must divide both sizes of `weight` `[out, in]`."""
    if on_gpu(input):
        from torchao.prototype.blockwise_fp8_training.linear import fp8_blockwise_mm  # needs triton

        product: torch.Tensor = fp8_blockwise_mm.apply(input, weight, BLOCK, input.dtype)
        return product
    emulated: torch.Tensor = _EmulatedProduct.apply(input, weight)
    return emulated


class _EmulatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        rows = input.flatten(0, -2)
        product = rounded(rows, 1, BLOCK) @ rounded(weight, BLOCK, BLOCK).t()
        return product.to(input.dtype).unflatten(0, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        input, weight = ctx.saved_tensors
        of_input, of_weight = ctx.needs_input_grad
        gradients, rows = grad.flatten(0, -2), input.flatten(0, -2)
        input_gradients = weight_gradients = None
        if of_input:
            product = rounded(gradients, 1, BLOCK) @ rounded(weight, BLOCK, BLOCK)
            input_gradients = product.to(input.dtype).view_as(input)
        if of_weight:
            product = rounded(gradients, BLOCK, 1).t() @ rounded(rows, BLOCK, 1)
            weight_gradients = product.to(weight.dtype)
        return input_gradients, weight_gradients


def rounded(matrix: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Returns a matrix in float32 with the values that it has in float8, with a scale per `height` × `width`
    numbers; those at the edges may be fewer.
    """
    rows, columns = matrix.shape
    padded = torch.nn.functional.pad(matrix.float(), (0, -columns % width, 0, -rows % height))
    tiles = padded.view(padded.shape[0] // height, height, padded.shape[1] // width, width)
    scales = tiles.abs().amax((1, 3), keepdim=True) / _MAX
    scales = torch.where(scales > 0, scales, 1.0)  # a block of zeros has to be divided by some number too
    values = (tiles / scales).clamp(-_MAX, _MAX).to(torch.float8_e4m3fn).float() * scales
    return values.view_as(padded)[:rows, :columns]
