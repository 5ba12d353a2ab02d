"""Copies between host memory and the device, in the order of the device's work and without waiting for it.

arrays ─▶ page-locked memory ─▶ device ─▶ its work ─▶ page-locked memory ─▶ (`wait`) ─▶ the host reads

A copy to or from ordinary memory makes the host wait until the device has done everything before it.
Page-locked memory comes from torch's caching allocator, which hands a block out again only when the copies
that use it are done, so a buffer may be dropped while it is still being copied. On a CPU there is nothing to
wait for.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray


def to_device(values: NDArray[np.generic] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns values on the device; where they are there already, the result shares their memory."""
    host = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    moves = device.type == "cuda" and host.device.type == "cpu"
    return (host.pin_memory() if moves else host).to(device, non_blocking=True)


def host_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns an uninitialised tensor in host memory, page-locked where `device` is a GPU that copies it."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Begins to copy a tensor to host memory: call `wait` before reading it. A tensor in host memory is
    returned as it is.
    """
    return host_copy(tensor) if tensor.device.type == "cuda" else tensor


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Begins to copy a tensor to host memory, also from host memory: call `wait` before reading the copy."""
    return host_empty(tensor.shape, tensor.dtype, tensor.device).copy_(tensor, non_blocking=True)


def wait(device: torch.device) -> None:
    """Waits until the device has done everything that it was asked to do, copies to host memory included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stack_scalars(values: Iterable[torch.Tensor | float], device: torch.device) -> torch.Tensor:
    """Returns `[N]` float64 on the device, from scalar tensors and numbers."""
    scalars = [_scalar(value, device) for value in values]
    return torch.stack(scalars) if scalars else torch.zeros(0, dtype=torch.float64, device=device)


def _scalar(value: torch.Tensor | float, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.device.type == device.type:
        return value.detach().double()
    return torch.full((), float(value), dtype=torch.float64, device=device)  # a number needs no copy
