"""Training state in host memory: optimizer state that visits the device for its step, and all of a rank's
state while others use its device.

host memory ──▶ a few parameters' state on the device ──▶ their step ──▶ host memory, and the next few
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from rlrun.runner.trainer.compat.meshes import local_part, with_local_part

VISIT_BYTES = 512 * 2**20
"""Parameters whose state is on the device together have at most this size."""


class Parking:
    """Takes tensors off their device and brings them back, in place: whoever holds them goes on holding them,
    and must not read them meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        """Tensors that lie elsewhere than on `device` stay where they are."""
        self._device = device
        self._parked: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}

    def leave(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy to host memory, and give the device's memory back; several tensors may be one storage."""
        assert not self._parked, "parked already"
        for tensor in map(local_part, tensors):
            storage = tensor.untyped_storage()
            if (
                tensor.device.type == self._device.type
                and storage.nbytes()
                and storage._cdata not in self._parked
            ):
                host = _host_tensor((storage.nbytes(),), torch.uint8, self._device)
                host.copy_(_bytes_of(storage), non_blocking=True)
                self._parked[storage._cdata] = storage, host
        self._wait()
        for storage, _ in self._parked.values():
            storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def come_back(self) -> None:
        """Bring back what left; nothing where nothing did."""
        for storage, host in self._parked.values():
            storage.resize_(len(host))
            _bytes_of(storage).copy_(host, non_blocking=True)
        self._wait()
        self._parked.clear()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def host_zeros(parameter: nn.Parameter) -> torch.Tensor:
    """Zeros like a parameter's, laid out over the ranks like it, in host memory."""
    local = local_part(parameter)
    return with_local_part(parameter, _host_tensor(local.shape, local.dtype, local.device).zero_())


def step_in_turns(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()` where every parameter's state exists, in host memory: it is on the device only while
    its turn lasts. The same step, bit for bit: no parameter's depends on another's.
    """
    members = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = []
    try:
        for group, parameters in zip(optimizer.param_groups, members, strict=True):
            for some in _turns(parameters):
                group["params"] = some
                with _visiting(optimizer, some):
                    optimizer.step()
            group["params"] = []
    finally:
        for group, parameters in zip(optimizer.param_groups, members, strict=True):
            group["params"] = parameters
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # what comes next may read the state


@contextmanager
def _visiting(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Their state on their device; scalars always are."""
    visitors = []
    for parameter in parameters:
        state = optimizer.state[parameter]
        for kind, host in state.items():
            if host.ndim:
                local = local_part(host)
                visitor = torch.empty_like(local, device=parameter.device).copy_(local, non_blocking=True)
                visitors.append((state, kind, host, visitor))
    for state, kind, host, visitor in visitors:
        state[kind] = with_local_part(host, visitor)
    try:
        yield
    finally:
        for state, kind, host, visitor in visitors:
            local_part(host).copy_(visitor, non_blocking=True)
            state[kind] = host


def _turns(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """In order, as many at a time as fit; one at least."""
    some: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        own = local_part(parameter).nbytes
        if some and size + own > VISIT_BYTES:
            yield some
            some, size = [], 0
        some.append(parameter)
        size += own
    if some:
        yield some


def _host_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Page-locked where a GPU is to copy to and from it."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
