"""Weights from trainer to SGLang servers of one host: torch's handles to shared memory, as its
`/update_weights_from_tensor` takes them.

    tensors ──copy──▶ one shared buffer ──ForkingPickler──▶ handles, a payload a reader ──HTTP──▶ server

A server copies the weights into its own before it answers, so that one buffer serves every update. A payload
is read once: torch counts the readers of a buffer in the buffer itself.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing

from rlrun.runner.carriers import SerializedWeights
from rlrun.runner.weights.fill import fill
from rlrun.runner.weights.layout import ITEM_SIZE, end, layout, num_bytes
from rlrun.runner.weights.segment_files import FOLDER

_COPIES = 3
"""Two more than are read while all is well; handles only, the weights lie there once."""


class SerializedWriter:
    """The writer's side: one buffer, made at the first write, gone with `close`.

    `shapes` names every tensor (Hugging Face names); `dtype` is what servers compute with; `readers` is the
    number of processes that load them, tensor-parallel ranks counted.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: str, readers: int) -> None:
        # A file descriptor, torch's default, cannot follow an HTTP call, and ends a server that is sent one.
        torch.multiprocessing.set_sharing_strategy("file_system")
        self._slots = layout(shapes, dtype)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._items = end(self._slots) // ITEM_SIZE[dtype]
        self._readers = readers
        self._views: dict[str, torch.Tensor] = {}

    def write(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> SerializedWeights:
        """Copy a whole set of weights; ValueError when a tensor is unknown, missing or of another shape."""
        if not self._views:
            self._views = self._allocate()
        fill(dict(self._views), tensors)
        payloads = tuple(self._payload() for _ in range(self._readers * _COPIES))
        return SerializedWeights(end(self._slots), version, payloads, _COPIES)

    def close(self) -> None:
        """Remove the buffer; a server that reads it keeps it until it has.

        torch would leave it there, since not every payload is read.
        """
        if self._views:
            storage = next(iter(self._views.values())).untyped_storage()
            _, handle, _ = storage._share_filename_cpu_()
            self._views = {}
            (FOLDER / handle.decode().lstrip("/")).unlink(missing_ok=True)

    def _allocate(self) -> dict[str, torch.Tensor]:
        buffer = torch.empty(self._items, dtype=self._dtype).share_memory_()
        views = {}
        for slot in self._slots:
            first = slot.offset // buffer.element_size()
            count = num_bytes(slot) // buffer.element_size()
            views[slot.name] = buffer[first : first + count].view(slot.shape)
        return views

    def _payload(self) -> str:
        written = io.BytesIO()
        ForkingPickler(written).dump(list(self._views.items()))
        return base64.b64encode(written.getvalue()).decode()
