"""Moves numpy arrays to the engine's device.

A copy from ordinary memory to a GPU blocks until the GPU has finished everything before it. A copy from
pinned memory does not, so all arrays of a pass travel in one pinned buffer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 8
"""Bytes; the size of the largest element."""


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Returns the arrays as tensors: views of the arrays on a CPU, else of one buffer on the device."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packed, offsets = pack(arrays)
    # The allocator of pinned memory keeps the buffer until the copy has been made.
    moved = torch.from_numpy(packed).pin_memory().to(device, non_blocking=True)
    return [unpack(moved, array, offset) for array, offset in zip(arrays, offsets, strict=True)]


def pack(arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[np.uint8], list[int]]:
    """Returns the bytes of all arrays in one buffer, and the offset of each."""
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    offsets = [0, *np.cumsum(sizes).tolist()]
    packed = np.zeros(offsets.pop(), np.uint8)
    for array, offset in zip(arrays, offsets, strict=True):
        packed[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return packed, offsets


def unpack(packed: torch.Tensor, like: NDArray[Any], offset: int) -> torch.Tensor:
    """Returns the tensor at an offset of a packed buffer, with the dtype and shape of `like`."""
    dtype = torch.from_numpy(like[:0]).dtype
    return packed[offset : offset + like.nbytes].view(dtype).view(like.shape)
