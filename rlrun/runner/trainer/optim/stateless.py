"""AdamW whose moments are forgotten before every step, so that it needs none."""

from collections.abc import Callable
from typing import Any

import torch


class StatelessAdamW(torch.optim.Optimizer):
    """Takes every step as AdamW's first one, whose moments are the gradient and its square, without bias.

    Each weight changes by `lr · g / (|g| + eps)`, close to the sign of its gradient, and by its decay. slime
    has it as --use-stateless-adam.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, eps: float) -> None:
        super().__init__(groups, {"lr": lr, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Takes one step; parameters without a gradient stay."""
        assert closure is None, "losses are computed before"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                    size = parameter.grad.abs().add_(group["eps"])
                    parameter.addcdiv_(parameter.grad, size, value=-group["lr"])
