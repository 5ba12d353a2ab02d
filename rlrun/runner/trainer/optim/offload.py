"""Training state in host memory: optimizer state that moves to the device for its step only, and all of a
rank's state while engines use its device.

host memory ──▶ a few parameters' state on the device ──▶ their step ──▶ host memory, and the next few
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from rlrun.runner.trainer.compat.meshes import local_part, with_local_part
from rlrun.runner.trainer.transfers import host_empty, wait

CHUNK_BYTES = 512 * 2**20
"""The parameters whose state is on the device at a time have at most this size together, in bytes."""


class Parking:
    """Moves tensors off their device and back, in place.

    The tensor objects stay valid, as only their storages are emptied; they must not be read meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        """Only tensors on `device` are moved."""
        self._device = device
        self._parked: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}

    def park(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copies the tensors to host memory and frees the device's; several tensors may share a storage."""
        assert not self._parked, "parked already"
        for tensor in map(local_part, tensors):
            storage = tensor.untyped_storage()
            if (
                tensor.device.type == self._device.type
                and storage.nbytes()
                and storage._cdata not in self._parked
            ):
                host = host_empty((storage.nbytes(),), torch.uint8, self._device)
                host.copy_(_bytes_of(storage), non_blocking=True)
                self._parked[storage._cdata] = storage, host
        wait(self._device)
        for storage, _ in self._parked.values():
            storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def present(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor, or a copy of it on the device if it is parked."""
        local = local_part(tensor)
        parked = self._parked.get(local.untyped_storage()._cdata)
        if parked is None:
            return tensor
        begin = local.storage_offset() * local.itemsize
        part = parked[1][begin : begin + local.numel() * local.itemsize]
        part = part.to(self._device, non_blocking=True)
        return with_local_part(tensor, part.view(local.dtype).view(local.shape))

    def unpark(self) -> None:
        """Copies every parked tensor back to the device; does nothing if none is parked."""
        for storage, host in self._parked.values():
            storage.resize_(len(host))
            _bytes_of(storage).copy_(host, non_blocking=True)
        wait(self._device)
        self._parked.clear()


def host_zeros(parameter: nn.Parameter) -> torch.Tensor:
    """Returns zeros in host memory, with a parameter's shape and its layout over the ranks."""
    local = local_part(parameter)
    return with_local_part(parameter, host_empty(local.shape, local.dtype, local.device).zero_())


def step_in_turns(optimizer: torch.optim.Optimizer) -> None:
    """Does what `optimizer.step()` does where every parameter's state is in host memory: moves the state of a
    few parameters to the device, takes their step, and moves it back.

    The result is the same bit for bit, because no parameter's step depends on another parameter. A GPU still
    copies state to host memory when this returns: call `transfers.wait` before reading it there.
    """
    members = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = []
    try:
        for group, parameters in zip(optimizer.param_groups, members, strict=True):
            for chunk in _chunks(parameters):
                group["params"] = chunk
                with _state_on_device(optimizer, chunk):
                    optimizer.step()
            group["params"] = []
    finally:
        for group, parameters in zip(optimizer.param_groups, members, strict=True):
            group["params"] = parameters


@contextmanager
def _state_on_device(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Moves the parameters' state to their device within the context; scalars are always there."""
    moved = []
    for parameter in parameters:
        state = optimizer.state[parameter]
        for kind, host in state.items():
            if host.ndim:
                local = local_part(host)
                copy = torch.empty_like(local, device=parameter.device).copy_(local, non_blocking=True)
                moved.append((state, kind, host, copy))
    for state, kind, host, copy in moved:
        state[kind] = with_local_part(host, copy)
    try:
        yield
    finally:
        for state, kind, host, copy in moved:
            local_part(host).copy_(copy, non_blocking=True)
            state[kind] = host


def _chunks(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yields the parameters in order, at most CHUNK_BYTES at a time, but at least one."""
    chunk: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        nbytes = local_part(parameter).nbytes
        if chunk and size + nbytes > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(parameter)
        size += nbytes
    if chunk:
        yield chunk


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
