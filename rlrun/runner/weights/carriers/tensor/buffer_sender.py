"""Hands buckets to SGLang servers through two buffers in turn, in host memory or on each rank's GPU."""

from collections.abc import Collection

import torch

from rlrun.runner.contracts.weight_updates import Readers
from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.carriers.tensor.sharing import SharedBuffer
from rlrun.runner.weights.page_locking import HOST


class SharedBufferSender:
    """Sends through buffers that server processes open and copy from.

    The buffers are in host memory, for all processes of all servers, or on this rank's GPU, for the one
    server process that computes on it.
    """

    def __init__(
        self,
        size: int,
        device: torch.device,
        processes: Collection[int] | None = None,
        *,
        source: torch.device = HOST,
    ) -> None:
        """`size`: bytes of the largest bucket. `device`: that of the buffers. `processes`: numbers of the
        server processes that read from this rank, counted over the processes of all servers; None: all of
        them. `source`: where tensors are copied from.
        """
        self._size = size
        self._device, self._source = device, source
        self._processes = processes
        self._readers: list[int] = []
        self._buffers: list[SharedBuffer] = []

    def begin(self, readers: Readers) -> None:
        """Notes which processes will read from this rank, and allocates two buffers for them."""
        self._readers = [
            process
            for process in readers.process_numbers
            if self._processes is None or process in self._processes
        ]
        while self._readers and len(self._buffers) < 2:
            self._buffers.append(SharedBuffer(self._size, self._device, self._source))

    def send(self, bucket: Bucket, weights: WeightSet) -> dict[int, str]:
        """Fills the buffer that engines are not reading; without readers, only takes part in gathering."""
        if not self._readers:
            weights.skip(bucket)
            return {}
        self._buffers.reverse()
        weights.fill(self._buffers[0].bytes, bucket)
        payloads = self._buffers[0].payloads(bucket, len(self._readers))
        return dict(zip(self._readers, payloads, strict=True))

    def finish(self) -> None:
        """Does nothing: an engine has copied a bucket when it answers the request to load it."""

    def abort(self, reason: str) -> None:
        """Does nothing: this sender never waits for engines."""

    def close(self) -> None:
        """Removes the buffers."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []
