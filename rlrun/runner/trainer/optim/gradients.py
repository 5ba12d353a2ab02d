"""The gradient norm over all ranks, clipping, and the error for values that are not finite.

gradients ─▶ norm, on the device ─▶ (the host reads it with the metrics) ─▶ scaling, if it is too large
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.runner.trainer.compat.meshes import mesh_device, with_local_part
from rlrun.runner.trainer.transfers import to_device


def gradient_norm(
    parameters: Mapping[str, nn.Parameter],
    *,
    copies: Collection[str] = (),
    stages: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Returns the norm of all gradients over all ranks, a scalar on the device of the parameters' mesh.

    `copies` names parameters that another rank counts already: a tied head on another pipeline stage than
    its embedding. `stages` are the ranks of the pipeline, which hold other layers.
    """
    squares = torch.zeros((), device=mesh_device(next(iter(parameters.values()))))
    for grads in _grads_by_mesh(parameters, copies):
        norm = torch.linalg.vector_norm(torch.stack(_on_device(torch._foreach_norm(grads), squares.device)))
        squares += (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    if stages is not None:
        dist.all_reduce(squares, dist.ReduceOp.SUM, stages)
    return squares.sqrt()


def _on_device(norms: Sequence[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor]:
    """Returns the norms on the device, where NCCL can reduce them; those of offloaded gradients are not."""
    if norms[0].device.type == device.type:
        return norms
    # `local_part` detaches, and so would reduce each norm over the ranks where it is
    parts = torch.stack([norm.to_local() if isinstance(norm, DTensor) else norm for norm in norms])
    on_device = to_device(parts, device).unbind()
    return [with_local_part(norm, part) for norm, part in zip(norms, on_device, strict=True)]


def clip_gradients(parameters: Mapping[str, nn.Parameter], max_norm: float, norm: float) -> None:
    """Scales gradients, whose norm over all ranks is `norm`, down to `max_norm`."""
    # In the precision of the norm, as torch's own clipping does
    factor = float(max_norm / (torch.tensor(norm, dtype=torch.float32) + 1e-6))
    if factor >= 1.0:
        return
    for grads in _grads_by_mesh(parameters):
        torch._foreach_mul_(grads, factor)


def _grads_by_mesh(
    parameters: Mapping[str, nn.Parameter], without: Collection[str] = ()
) -> Iterable[list[torch.Tensor]]:
    """Returns the gradients in groups of one mesh each, except those of the parameters `without`.

    torch's operators over many tensors take tensors of one mesh, and expert-parallel experts have their own.
    """
    groups: dict[tuple[str, ...] | None, list[torch.Tensor]] = {}
    for name, parameter in parameters.items():
        if parameter.grad is not None and name not in without:
            groups.setdefault(_mesh_axes(parameter.grad), []).append(parameter.grad)
    return groups.values()


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
