"""Frozen matrices that are held in 4 or 8 bits, and decoded for each product (`trainer.lora.base`).

bytes of the matrix ──▶ decoded, in the precision of the input ──▶ product; the backward pass decodes again
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlrun.converters.tensors.base_blocks import BaseKind, bytes_per_row, decode
from rlrun.models.adapters import check_base, quantised_matrices
from rlrun.models.architecture import Architecture
from rlrun.runner.trainer.compat.lora import replace_linear
from rlrun.runner.trainer.compat.modules import Linear
from rlrun.runner.trainer.ops.products import linear


class QuantisedMatrix(Linear):
    """A linear layer whose weight is bytes `[out, bytes_per_row]`, as `base_blocks.encode` returns them."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        kind: BaseKind

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.kind = config.kind
        width = bytes_per_row(config.kind, config.in_features)
        # floating-point numbers until `hold_as_bytes`, because torchtitan makes parameters with gradients
        # of them when it lays them out
        self.weight = nn.Parameter(torch.empty(config.out_features, width))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        output: torch.Tensor = _QuantisedProduct.apply(input, self.weight, self.kind)
        return output if self.bias is None else output + self.bias


class _QuantisedProduct(torch.autograd.Function):
    """The product with a decoded matrix. Only its bytes are saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, stored: torch.Tensor, kind: BaseKind) -> torch.Tensor:
        ctx.save_for_backward(stored)
        ctx.kind = kind
        return linear(input, decode(stored, kind, input.dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        (stored,) = ctx.saved_tensors
        return linear(grad, decode(stored, ctx.kind, grad.dtype).t()), None, None


def quantise_matrices(config: Any, model: Architecture, kind: BaseKind, tensor: int) -> Any:
    """Returns a sharded model config whose layers' matrices are held in 4 or 8 bits.

    Raises ValueError if the model's matrices cannot be, with `tensor` ranks that split them.
    """
    check_base(model, kind, tensor)
    names = {matrix.parameter.split(".")[-2] for matrix in quantised_matrices(model)}
    # keys and values share a config
    in_config = {"wkv" if name in ("wk", "wv") else name for name in names}
    return replace_linear(config, QuantisedMatrix, in_config, kind=kind)


def hold_as_bytes(decoder: nn.Module) -> None:
    """Makes the weights of `QuantisedMatrix` bytes. Call it when they are frozen, and before FSDP."""
    for module in decoder.modules():
        if isinstance(module, QuantisedMatrix):
            # a new Parameter would lose the layout that is noted on this one
            module.weight.data = module.weight.data.to(torch.uint8)
