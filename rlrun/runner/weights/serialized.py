"""Hands the whole model to SGLang servers of this host through one buffer in host memory.

    gathered tensors ──▶ SharedBuffer ──payloads──▶ driver ──POST /update_weights_from_tensor──▶ servers

Servers may read the buffer later, when the trainer no longer uses its device. One buffer serves every update,
because a server has made its own copy before it answers.
"""

import torch

from rlrun.runner.contracts.weight_updates import SerializedWeights
from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.page_locking import HOST
from rlrun.runner.weights.sharing import SharedBuffer

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
