"""Learning-rate schedules, the gradient norm over the mesh, and what is not finite."""

import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.runner.trainer.compat import clip_grad_norm_
from rlrun.specs.optimizer import OptimizerSpec


def learning_rate(spec: OptimizerSpec, step: int, total: int) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total`.

    Warm-up rises linearly from 0, reaching the peak after `warmup_steps`; then the schedule runs until
    `total`, where all but the constant one would arrive at `min_lr_ratio`.
    """
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / (spec.warmup_steps + 1)
    begin = spec.warmup_steps
    if spec.schedule == "wsd":
        begin = max(begin, total - (spec.decay_steps or -(-total // 10)))
    progress = min(max(step - begin, 0) / max(total - begin, 1), 1.0)
    match spec.schedule:
        case "constant":
            share = 1.0
        case "linear" | "wsd":
            share = 1.0 - progress
        case "cosine":
            share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return spec.lr * (spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * share)


def clip_gradients(parameters: Mapping[str, nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to `max_norm` and return the norm they had, over all ranks."""
    return float(clip_grad_norm_(parameters.values(), max_norm, foreach=True))


class NonFiniteError(ArithmeticError):
    """A loss or gradient with a NaN or infinity, found before it reached the weights."""


def non_finite_error(
    step: int, loss: float, parameters: Mapping[str, nn.Parameter], section: str = "trainer"
) -> NonFiniteError:
    """What was not finite in optimizer step `step` (from 1), as far as this rank can tell, and what to do;
    `section` of the spec is the model's.
    """
    if not math.isfinite(loss):
        what = f"the loss is {loss}"
    else:
        names = [name for name, parameter in parameters.items() if not _finite(parameter.grad)]
        what = f"the gradient of {', '.join(names[:3]) or 'a parameter on another rank'} is not finite"
        what += f" ({len(names)} parameters)" if len(names) > 3 else ""
    return NonFiniteError(
        f"optimizer step {step}: {what}; the weights are as before. Lower {section}.lr, or set "
        'trainer.non_finite = "skip" to leave such steps out'
    )


def _finite(grad: torch.Tensor | None) -> bool:
    if grad is None:
        return True
    return bool((grad.to_local() if isinstance(grad, DTensor) else grad).isfinite().all())
