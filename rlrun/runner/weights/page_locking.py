"""Registers memory that processes share with CUDA, so that a GPU copies from and to it directly.

Every other copy passes through a small buffer of CUDA's own: it reaches a fraction of the bus's speed, and
the host waits for it. Registering memory takes about as long as copying it, so it is done once per buffer.
"""

import warnings

import torch

HOST = torch.device("cpu")


class PageLock:
    """Memory of the host that stays registered with CUDA until `release`."""

    def __init__(self, memory: torch.Tensor) -> None:
        """Raises RuntimeError if CUDA does not register the memory."""
        register(memory)
        self.memory = memory

    def release(self) -> None:
        """Ends the registration; has to come before the memory is unmapped."""
        unregister(self.memory)


def lock_where_possible(memory: torch.Tensor, device: torch.device) -> PageLock | None:
    """Returns the lock of a buffer that `device` copies into; None for a CPU, and if CUDA refuses.

    Without a lock the copies are right, but slow.
    """
    if device.type != "cuda":
        return None
    try:
        return PageLock(memory)
    except RuntimeError as error:
        warnings.warn(f"{error}: every copy of weights will keep this rank waiting", stacklevel=2)
        return None


def register(memory: torch.Tensor) -> None:
    """Registers a tensor's memory. Raises RuntimeError if CUDA refuses."""
    runtime = torch.cuda.cudart()
    error = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error) != 0:
        raise RuntimeError(
            f"CUDA cannot register {memory.nbytes / 1e9:.1f} GB of shared memory: "
            f"{runtime.cudaGetErrorString(error)}"
        )


def unregister(memory: torch.Tensor) -> None:
    """Ends a registration when all copies have ended: the device may still be filling the memory."""
    torch.cuda.synchronize()
    torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()))
