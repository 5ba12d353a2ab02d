"""The gradient norm over all ranks, clipping, and the error for values that are not finite."""

import math
from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rlrun.runner.trainer.compat.meshes import mesh_device


def clip_gradients(
    parameters: Mapping[str, nn.Parameter],
    max_norm: float,
    *,
    copies: Collection[str] = (),
    stages: dist.ProcessGroup | None = None,
) -> float:
    """Scales gradients down to the norm `max_norm`; returns the norm that they had, over all ranks.

    `copies` names parameters that another rank counts already: a tied head on another pipeline stage than
    its embedding. `stages` are the ranks of the pipeline, which hold other layers.
    """
    # torch computes a norm only over tensors of one mesh, and expert-parallel experts have their own
    names_by_mesh: dict[tuple[str, ...] | None, list[str]] = {}
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            names_by_mesh.setdefault(_mesh_axes(parameter.grad), []).append(name)
    squares = torch.zeros((), device=mesh_device(next(iter(parameters.values()))))
    for names in names_by_mesh.values():
        grads = [parameters[name].grad for name in names if name not in copies]
        norm = get_total_norm([grad for grad in grads if grad is not None], foreach=True)
        if isinstance(norm, DTensor):  # reduced on the device, even where gradients are in host memory
            norm = norm.to(squares.device).full_tensor()
        squares += norm**2
    if stages is not None:
        dist.all_reduce(squares, dist.ReduceOp.SUM, stages)
    total = squares.sqrt()
    for names in names_by_mesh.values():
        clip_grads_with_norm_([parameters[name] for name in names], max_norm, total, foreach=True)
    return float(total)


def _mesh_axes(grad: torch.Tensor) -> tuple[str, ...] | None:
    """Returns the names of the axes of a gradient's mesh; None for a gradient on one rank."""
    return grad.device_mesh.mesh_dim_names if isinstance(grad, DTensor) else None


class NonFiniteError(ArithmeticError):
    """A NaN or an infinity in a loss or a gradient, found before it reached the weights."""


def non_finite_error(
    step: int, loss: float, parameters: Mapping[str, nn.Parameter], section: str = "trainer"
) -> NonFiniteError:
    """Returns an error that names what is not finite in optimizer step `step` (from 1), and the cure.

    Only this rank's gradients can be named. `section` is the model's section of the spec.
    """
    if not math.isfinite(loss):
        cause = f"the loss is {loss}"
    else:
        names = [name for name, parameter in parameters.items() if not _finite(parameter.grad)]
        cause = f"the gradient of {', '.join(names[:3]) or 'a parameter on another rank'} is not finite"
        cause += f" ({len(names)} parameters)" if len(names) > 3 else ""
    return NonFiniteError(
        f"optimizer step {step}: {cause}; the weights were not changed. Lower {section}.lr, or set "
        'trainer.non_finite = "skip" to skip such steps'
    )


def _finite(grad: torch.Tensor | None) -> bool:
    if grad is None:
        return True
    return bool((grad.to_local() if isinstance(grad, DTensor) else grad).isfinite().all())
