"""A buffer that processes of this host may open, and torch's handles to it for SGLang servers.

    buffer ──handle, and what lies where──▶ payload, one a reader ──HTTP──▶ server opens the buffer, copies

In host memory a handle is the name of a file, on a GPU a CUDA IPC handle. A payload is read once: torch
counts a buffer's readers. A server lets go of a buffer, and so waits for its copies, before it answers.
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

from rlrun.converters.tensors.precision import dtype_named
from rlrun.runner.contracts.carriers import TensorSlot
from rlrun.runner.host.segment_files import FOLDER
from rlrun.runner.weights.buckets import Bucket, bytes_of

_DEVICE = 6
"""Where the number of its GPU stands among what torch says of a tensor (`rebuild_cuda_tensor`)."""

Reduced = tuple[Any, tuple[Any, ...]]


class SharedBuffer:
    """Bytes that other processes of this host can open; gone with `close`."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device
        if device.type == "cpu":
            # A file descriptor, torch's default, cannot follow an HTTP call, and ends a server that is sent
            # one.
            torch.multiprocessing.set_sharing_strategy("file_system")
        empty = torch.empty(size, dtype=torch.uint8, device=device)
        self.bytes: torch.Tensor = empty.share_memory_()

    def payloads(self, bucket: Bucket, count: int) -> tuple[str, ...]:
        """Handles to a bucket that was put there, for `count` readers."""
        if self._device.type != "cpu":
            torch.cuda.synchronize(self._device)  # readers do not wait for our stream
        return tuple(_payload(self.bytes[: bucket.size], bucket) for _ in range(count))

    def close(self) -> None:
        """Remove the buffer, which torch would leave there where not every payload was read; a process that
        has opened it keeps it.
        """
        on_host = self._device.type == "cpu"
        handle = self.bytes.untyped_storage()._share_filename_cpu_()[1] if on_host else b""
        self.bytes = torch.empty(0, dtype=torch.uint8)  # torch aborts where its file is gone before
        if on_host:
            (FOLDER / handle.decode().lstrip("/")).unlink(missing_ok=True)
        else:
            torch.cuda.ipc_collect()


def by_uuid(reduced: Reduced, uuid_of: Callable[[int], str]) -> Reduced:
    """What torch says of a tensor, with its GPU's UUID for its number: every process counts those that it
    sees, and servers look for the UUID (sglang.srt.utils.patch_torch).
    """
    rebuild, arguments = reduced
    uuid = uuid_of(arguments[_DEVICE])
    return rebuild, (*arguments[:_DEVICE], uuid, *arguments[_DEVICE + 1 :])


def _payload(buffer: torch.Tensor, bucket: Bucket) -> str:
    """A bucket as servers take it ("flattened_bucket"): one handle, whatever the number of tensors."""
    written = io.BytesIO()
    pickler = ForkingPickler(written)
    pickler.dispatch_table = {**pickler.dispatch_table, torch.Tensor: _reduced}
    pickler.dump({"flattened_tensor": buffer, "metadata": [*map(_place, bucket.slots)]})
    return base64.b64encode(written.getvalue()).decode()


def _reduced(tensor: torch.Tensor) -> Reduced:
    reduced: Reduced = reduce_tensor(tensor)
    return by_uuid(reduced, _uuid) if tensor.is_cuda else reduced


def _uuid(device: int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _place(slot: TensorSlot) -> SimpleNamespace:
    """What SGLang reads of its FlattenedTensorMetadata, as an object that needs no SGLang here."""
    size = bytes_of(slot)
    return SimpleNamespace(
        name=slot.name,
        shape=torch.Size(slot.shape),
        dtype=dtype_named(slot.dtype),
        start_idx=slot.offset,
        end_idx=slot.offset + size,
        numel=size,
    )
