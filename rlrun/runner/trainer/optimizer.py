"""AdamW, learning-rate schedules, and the gradient norm over the mesh."""

import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.runner.trainer.compat import clip_grad_norm_
from rlrun.specs.trainer import TrainerSpec


def learning_rate(spec: TrainerSpec, step: int, total: int) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total`.

    Warm-up rises linearly from 0, reaching the peak after `warmup_steps`; then constant, linear or cosine
    until `total`, where linear and cosine would arrive at `min_lr_ratio`.
    """
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / (spec.warmup_steps + 1)
    if spec.schedule == "constant":
        return spec.lr
    progress = min((step - spec.warmup_steps) / max(total - spec.warmup_steps, 1), 1.0)
    share = 1.0 - progress if spec.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return spec.lr * (spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * share)


def make_optimizer(spec: TrainerSpec, parameters: Mapping[str, nn.Parameter]) -> torch.optim.AdamW:
    """AdamW over the masters; weight decay on matrices alone, as norms have nothing to decay to."""
    matrices = [parameter for parameter in parameters.values() if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters.values() if parameter.ndim == 1]
    return torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=spec.lr,
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        fused=True,
    )


def clip_gradients(parameters: Mapping[str, nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to `max_norm` and return the norm they had, over all ranks."""
    return float(clip_grad_norm_(parameters.values(), max_norm, foreach=True))


def non_finite_gradients(parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """Parameters whose gradient has a NaN or infinity in this rank's part."""
    names = []
    for name, parameter in parameters.items():
        grad = parameter.grad
        if grad is None:
            continue
        local = grad.to_local() if isinstance(grad, DTensor) else grad
        if not bool(local.isfinite().all()):
            names.append(name)
    return names
