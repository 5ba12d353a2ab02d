"""Weights from trainer to SGLang servers of one host: a whole model in one buffer in host memory, which
servers copy theirs from (`/update_weights_from_tensor`), also later, when the trainer has left its device.

One buffer serves every update, since a server has its copy before it answers.
"""

import torch

from rlrun.runner.contracts.carriers import SerializedWeights
from rlrun.runner.weights.buckets import Bucket, WeightSet, views_of
from rlrun.runner.weights.sharing import SharedBuffer

_COPIES = 3
"""Two more than are read while all is well; handles only, the weights lie there once."""


class SerializedWriter:
    """The writer's side: one buffer, made at the first write, gone with `close`.

    `readers` is the number of processes that load the weights, tensor-parallel ranks counted.
    """

    def __init__(self, whole: Bucket, readers: int) -> None:
        self._whole = whole
        self._readers = readers
        self._buffer: SharedBuffer | None = None

    def write(self, weights: WeightSet, version: int) -> SerializedWeights:
        """Copy a whole set of weights; ValueError when a tensor is unknown, missing or of another shape."""
        if self._buffer is None:
            self._buffer = SharedBuffer(self._whole.size, torch.device("cpu"))
        weights.put(views_of(self._buffer.bytes, self._whole), self._whole)
        payloads = self._buffer.payloads(self._whole, self._readers * _COPIES)
        return SerializedWeights(self._whole.size, version, payloads, _COPIES, weights.checksums())

    def close(self) -> None:
        """Remove the buffer; a server that reads it keeps it until it has."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None
