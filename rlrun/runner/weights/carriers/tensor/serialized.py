"""Hands the whole model to SGLang servers of this host through one buffer in host memory.

    gathered tensors ──▶ SharedBuffer ──payloads──▶ driver ──POST /update_weights_from_tensor──▶ servers

Servers may read the buffer later, when the trainer no longer uses its device. One buffer serves every update,
because a server has made its own copy before it answers.
"""

import hashlib

import torch

from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.carriers.tensor.sharing import SharedBuffer
from rlrun.runner.weights.carriers.tensor.updates import SerializedWeights, ServerAdapters
from rlrun.runner.weights.page_locking import HOST
from rlrun.runner.weights.rank_weights import RankAdapters, Tensors
from rlrun.runner.weights.server_adapters import ServerAdapterWriter
from rlrun.runner.weights.tensor_slots import tensors_in
from rlrun.specs.derived.engine_groups import server_ranks
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.sections.job import Spec

COPIES = 3
"""How many times each process may read one update: once, and twice more after restarts. An unused copy costs
one handle, since the weights themselves are stored once."""


class SerializedWriter:
    """Writes every update into one buffer, allocated at the first write and removed by `close`."""

    def __init__(self, whole: Bucket, readers: int, source: torch.device) -> None:
        """`whole`: the bucket of all tensors. `readers`: processes that load it, over all servers. `source`:
        where tensors are copied from.
        """
        self._source = source
        self._whole = whole
        self._readers = readers
        self._buffer: SharedBuffer | None = None

    def write(self, weights: WeightSet, version: int) -> SerializedWeights:
        """Copies all tensors into the buffer. ValueError when one is unknown, missing or of another shape."""
        if self._buffer is None:
            self._buffer = SharedBuffer(self._whole.size, HOST, self._source)
        weights.fill(self._buffer.bytes, self._whole)
        payloads = self._buffer.payloads(self._whole, self._readers * COPIES)
        return SerializedWeights(self._whole.size, version, payloads, COPIES, weights.checksums())

    def close(self) -> None:
        """Removes the buffer. A server that is reading it keeps it until it has read it."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None


class BufferAdapterWriter(ServerAdapterWriter):
    """Writes to buffers in host memory, for servers on this host."""

    def __init__(self, spec: Spec, source: RankAdapters) -> None:
        super().__init__(spec, source)
        self._buffer: SharedBuffer | None = None

    def close(self) -> None:
        """Removes the last buffer."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def _store(self, tensors: Tensors, version: int) -> ServerAdapters:
        """Copies the adapters into a new buffer.

        A server keeps views of the buffer for as long as it has the adapters, so that the next version must
        not overwrite it. Removing its file leaves the server its memory.
        """
        self.close()
        self._buffer = SharedBuffer(self._bucket.size, HOST, self._source.device)
        WeightSet(tensors, self._form).fill(self._buffer.bytes, self._bucket)
        readers = layout_of(self._spec, rollout=True).engines * server_ranks(self._spec)
        payloads = self._buffer.payloads(self._bucket, readers * COPIES)
        weights = SerializedWeights(self._bucket.size, version, payloads, COPIES)
        views = tensors_in(self._buffer.bytes, self._bucket.slots)
        checksums = {name: _sha256(view) for name, view in views.items()}
        return ServerAdapters(weights, self._config, checksums, self._base, self._room)


def _sha256(tensor: torch.Tensor) -> str:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(data).hexdigest()
