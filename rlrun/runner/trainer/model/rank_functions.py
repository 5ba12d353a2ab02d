"""Functions of a tensor over the ranks of a group, each with its gradient."""

from typing import Any

import torch
import torch.distributed as dist


class SumGradients(torch.autograd.Function):
    """Returns the input, which is the same on all ranks, and adds up its gradients, of which each rank has a
    part.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sum(grad, ctx.group), None


class Sum(torch.autograd.Function):
    """Returns the sum of the inputs of all ranks; the gradient of the sum is the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Gather(torch.autograd.Function):
    """Returns the inputs of all ranks, concatenated along a dimension; each rank takes its part of the
    gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _gather(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _part(grad, ctx.dim, ctx.group), None, None


class Split(torch.autograd.Function):
    """Returns this rank's part of an input that is the same on all ranks; gradients are concatenated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _part(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _gather(grad, ctx.dim, ctx.group), None, None


def _sum(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _gather(x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def _part(x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    return x.chunk(group.size(), dim)[group.rank()].contiguous()
