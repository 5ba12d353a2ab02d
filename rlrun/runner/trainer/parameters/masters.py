"""Float32 masters of parameters that a single rank computes with in bfloat16, or holds on the host.

Gathered from them, matrices are rounded as the model rounds them for its products (`trainer.precision =
"int4_qat"`).
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from rlrun.converters.tensors.int4_groups import rounded_to_int4
from rlrun.models.architecture import Architecture
from rlrun.models.low_precision import is_int4_matrix
from rlrun.runner.trainer.transfers import host_empty

Tensors = Iterator[tuple[str, torch.Tensor]]


def masters_of(parameters: dict[str, nn.Parameter], on_host: bool) -> dict[str, nn.Parameter]:
    """Returns float32 masters of parameters; gradients are moved to them as soon as they are complete."""
    masters = {name: nn.Parameter(_master_of(parameter, on_host)) for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        parameter.register_post_accumulate_grad_hook(_gradient_mover(masters[name]))
    return masters


def _master_of(parameter: nn.Parameter, on_host: bool) -> torch.Tensor:
    if on_host:
        return host_empty(parameter.shape, torch.float32, parameter.device)
    return torch.empty_like(parameter, dtype=torch.float32)


def _gradient_mover(master: nn.Parameter) -> Callable[[torch.Tensor], None]:
    """Returns a hook that adds a parameter's new gradient to its float32 master and frees it."""

    def move(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if master.device != parameter.device:
            add_on_host(master, parameter.grad)
        elif master.grad is None:
            master.grad = parameter.grad.to(torch.float32)
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    return move


def add_on_host(master: nn.Parameter, gradient: torch.Tensor) -> None:
    """Adds a gradient on a GPU to that of a master in host memory, in the order of the GPU's work.

    The GPU adds, so that the host need not wait for the gradient to arrive.
    """
    total = gradient.to(torch.float32)
    if master.grad is None:
        master.grad = host_empty(master.shape, torch.float32, gradient.device)
    else:
        total = total + master.grad.to(gradient.device, non_blocking=True)
    master.grad.copy_(total, non_blocking=True)


def no_rounding(tensors: Tensors) -> Tensors:
    """Returns the tensors as they are."""
    return tensors


def round_matrices(model: Architecture, group: int) -> Callable[[Tensors], Tensors]:
    """Returns a function that rounds the matrices that INT4 engines have in four bits, by their names.

    The model rounds what FSDP has cast to bfloat16, and so does this; float32 holds the results without loss.
    """
    routed = bool(model.experts)

    def rounded(tensors: Tensors) -> Tensors:
        for name, tensor in tensors:
            if len(tensor) and is_int4_matrix(name, routed=routed):  # those of other stages are empty
                yield name, rounded_to_int4(tensor.bfloat16(), group).to(tensor.dtype)
            else:
                yield name, tensor

    return rounded
