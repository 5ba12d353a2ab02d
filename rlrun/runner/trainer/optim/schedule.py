"""Learning-rate schedules, the gradient norm over the mesh, and what is not finite."""

import math
from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rlrun.runner.trainer.compat.meshes import mesh_device
from rlrun.specs.sections.optimizer import OptimizerSpec


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


def clip_gradients(
    parameters: Mapping[str, nn.Parameter],
    max_norm: float,
    *,
    copies: Collection[str] = (),
    stages: dist.ProcessGroup | None = None,
) -> float:
    """Scale gradients down to `max_norm` and return the norm they had, over all ranks.

    `copies` names parameters that another rank counts; `stages` are the ranks that hold other layers.
    """
    by_mesh: dict[tuple[str, ...] | None, list[str]] = {}
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            by_mesh.setdefault(_mesh_axes(parameter.grad), []).append(name)
    squares = torch.zeros((), device=mesh_device(next(iter(parameters.values()))))
    for names in by_mesh.values():
        grads = [parameters[name].grad for name in names if name not in copies]
        norm = get_total_norm([grad for grad in grads if grad is not None], foreach=True)
        if isinstance(norm, DTensor):  # reduced on the device, also where gradients lie in host memory
            norm = norm.to(squares.device).full_tensor()
        squares += norm**2
    if stages is not None:
        dist.all_reduce(squares, dist.ReduceOp.SUM, stages)
    total = squares.sqrt()
    for names in by_mesh.values():
        clip_grads_with_norm_([parameters[name] for name in names], max_norm, total, foreach=True)
    return float(total)


def _mesh_axes(grad: torch.Tensor) -> tuple[str, ...] | None:
    """Gradients of shared-out experts lie on a mesh of their own."""
    return grad.device_mesh.mesh_dim_names if isinstance(grad, DTensor) else None


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
