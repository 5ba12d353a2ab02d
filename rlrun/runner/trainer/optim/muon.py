"""Muon for the experts' matrices, which the trainer holds as stacks `[experts, outputs, inputs]`.

    gradients ─▶ momentum ─▶ whole matrices on this rank ─▶ Newton-Schulz of all of them at once ─▶ step

Each matrix takes the step of torch.optim.Muon. That accepts single matrices only, and none whose rows ranks
share unequally, such as a router's with fewer experts than ranks: those are updated here too.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration; with the number of iterations, those of torch.optim.Muon."""
_ITERATIONS = 5
_MIN_NORM = 1e-7
_CHUNK_NUMBERS = 64 << 20
"""The most numbers that are orthogonalised at once, which bounds the temporary memory."""


class GatheringMuon(torch.optim.Optimizer):
    """Orthogonalises the Nesterov momentum of every matrix, scaled to the size of Adam's steps."""

    def __init__(
        self, parameters: list[nn.Parameter], *, lr: float, weight_decay: float, momentum: float
    ) -> None:
        """`parameters` are stacks of matrices, or single ones."""
        settings = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([{"params": parameters}], settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Takes one step with the gradients that the parameters have."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                average = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                update = _orthogonal(parameter.grad.lerp(average, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape[-2:])))


def is_shared_unequally(parameter: torch.Tensor) -> bool:
    """Returns whether a dimension of a parameter is not a multiple of the ranks that share it."""
    if not isinstance(parameter, DTensor):
        return False
    ranks = [1] * parameter.ndim
    for axis, placement in enumerate(parameter.placements):
        if (dimension := _sharded_dimension(placement)) is not None:
            ranks[dimension] *= parameter.device_mesh.size(axis)
    return any(size % count for size, count in zip(parameter.shape, ranks, strict=True))


def _orthogonal(update: torch.Tensor) -> torch.Tensor:
    """Returns orthogonalised matrices, laid out like `update`.

    Ranks that hold different experts do not communicate; those that hold parts of matrices gather them.
    """
    if not isinstance(update, DTensor):
        return newton_schulz(update)
    experts = 0 if update.ndim == 3 else None  # the dimension whose parts are whole matrices
    whole = tuple(
        placement if _sharded_dimension(placement) in (None, experts) else Replicate()
        for placement in update.placements
    )
    orthogonal = DTensor.from_local(
        newton_schulz(update.redistribute(placements=whole).to_local()),
        update.device_mesh,
        whole,
        run_check=False,
        shape=update.shape,
        stride=update.stride(),
    )
    return orthogonal.redistribute(placements=update.placements)


def _sharded_dimension(placement: Placement) -> int | None:
    """Returns the dimension that a placement divides; None if every rank has all of the tensor."""
    dimension: int | None = getattr(placement, "dim", None)
    return dimension


def newton_schulz(matrices: torch.Tensor) -> torch.Tensor:
    """Returns `[(experts,) outputs, inputs]` in bfloat16: each matrix with singular values near 1."""
    if matrices.ndim == 2:
        return _newton_schulz(matrices[None])[0]
    chunk = max(1, _CHUNK_NUMBERS // max(1, math.prod(matrices.shape[1:])))
    return torch.cat([_newton_schulz(part) for part in matrices.split(chunk)])


def _newton_schulz(stack: torch.Tensor) -> torch.Tensor:
    a, b, c = _COEFFICIENTS
    is_tall = stack.shape[1] > stack.shape[2]
    matrices = stack.bfloat16()
    if is_tall:
        matrices = matrices.mT
    norms = matrices.flatten(1).norm(dim=1).clamp(min=_MIN_NORM)
    matrices = matrices / norms[:, None, None]
    for _ in range(_ITERATIONS):
        gram = matrices @ matrices.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        matrices = torch.baddbmm(matrices, polynomial, matrices, beta=a)
    return matrices.mT if is_tall else matrices
