"""A buffer that other processes of this host can open, and torch's handles to it, for SGLang servers.

    SharedBuffer ──handle, slots──▶ payload, one per reader ──HTTP──▶ server opens the buffer and copies

In host memory a handle is the name of a file, on a GPU it is a CUDA IPC handle. Each payload can be read
once, because torch counts the readers of a buffer. A server closes the buffer before it answers, and so has
finished its copies by then.
"""

import base64
import io
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing
from torch.multiprocessing.reductions import reduce_tensor

from rlrun.converters.tensors.precision import parse_dtype
from rlrun.runner.contracts.weight_updates import TensorSlot
from rlrun.runner.host.segment_files import FOLDER
from rlrun.runner.weights.buckets import Bucket
from rlrun.runner.weights.page_locking import HOST, lock_where_possible
from rlrun.runner.weights.tensor_slots import num_bytes

_DEVICE = 6
"""Position of the GPU's number in the arguments of torch's `rebuild_cuda_tensor`."""

Reduced = tuple[Any, tuple[Any, ...]]
"""A tensor as torch pickles it: the function that rebuilds it, and its arguments."""


class SharedBuffer:
    """A buffer of bytes that other processes of this host can open; `close` removes it."""

    def __init__(self, size: int, device: torch.device, source: torch.device = HOST) -> None:
        """`source`: where tensors are copied from."""
        self._device = device
        if device.type == "cpu":
            # Torch's default shares a file descriptor, which cannot be sent over HTTP: a server that gets
            # one dies.
            torch.multiprocessing.set_sharing_strategy("file_system")
        empty = torch.empty(size, dtype=torch.uint8, device=device)
        self.bytes: torch.Tensor = empty.share_memory_()
        self._page_lock = lock_where_possible(self.bytes, source) if device.type == "cpu" else None

    def payloads(self, bucket: Bucket, count: int) -> tuple[str, ...]:
        """Returns handles to the bucket that was copied into the buffer, one for each of `count` readers."""
        if self._device.type != "cpu":
            torch.cuda.synchronize(self._device)  # readers do not wait for this process's CUDA stream
        return tuple(_payload(self.bytes[: bucket.size], bucket) for _ in range(count))

    def close(self) -> None:
        """Removes the buffer; a process that has opened it keeps it.

        Torch itself would leave the file behind where some payload was never read.
        """
        on_host = self._device.type == "cpu"
        if self._page_lock is not None:
            self._page_lock.release()
            self._page_lock = None
        handle = self.bytes.untyped_storage()._share_filename_cpu_()[1] if on_host else b""
        self.bytes = torch.empty(
            0, dtype=torch.uint8
        )  # frees the tensor first: torch aborts without its file
        if on_host:
            (FOLDER / handle.decode().lstrip("/")).unlink(missing_ok=True)
        else:
            torch.cuda.ipc_collect()


def with_gpu_uuid(reduced: Reduced, uuid_of: Callable[[int], str]) -> Reduced:
    """Returns a pickled CUDA tensor with its GPU's UUID in place of its number.

    A GPU's number differs between processes that see different GPUs; servers expect the UUID
    (sglang.srt.utils.patch_torch).
    """
    rebuild, arguments = reduced
    uuid = uuid_of(arguments[_DEVICE])
    return rebuild, (*arguments[:_DEVICE], uuid, *arguments[_DEVICE + 1 :])


def _payload(buffer: torch.Tensor, bucket: Bucket) -> str:
    """Returns a bucket in SGLang's load format "flattened_bucket": one handle for all of its tensors."""
    pickled = io.BytesIO()
    pickler = ForkingPickler(pickled)
    pickler.dispatch_table = {**pickler.dispatch_table, torch.Tensor: _reduced}
    pickler.dump({"flattened_tensor": buffer, "metadata": [*map(_metadata, bucket.slots)]})
    return base64.b64encode(pickled.getvalue()).decode()


def _reduced(tensor: torch.Tensor) -> Reduced:
    reduced: Reduced = reduce_tensor(tensor)
    return with_gpu_uuid(reduced, _uuid) if tensor.is_cuda else reduced


def _uuid(device: int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _metadata(slot: TensorSlot) -> SimpleNamespace:
    """Returns the attributes of SGLang's FlattenedTensorMetadata that it reads, without importing SGLang."""
    size = num_bytes(slot)
    return SimpleNamespace(
        name=slot.name,
        shape=torch.Size(slot.shape),
        dtype=parse_dtype(slot.dtype),
        start_idx=slot.offset,
        end_idx=slot.offset + size,
        numel=size,
    )
