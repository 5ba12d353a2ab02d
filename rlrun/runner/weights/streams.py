"""Streams weights bucket by bucket, so that only two buckets of a stream are in memory at a time.

                    buffer A                       buffer B
    next() call 1   gathers bucket 1
    next() call 2   engines load bucket 1          gathers bucket 2
    next() call 3   gathers bucket 3               engines load bucket 2
    …
    last call       waits until the last bucket is sent, returns the checksums of all of them

The driver makes call n + 1 while engines load bucket n, and gives them bucket n + 1 only when all of them
have loaded bucket n; this is why two buffers are enough. A rank hands buckets over with a BucketSender:

    sender on           of                      medium
    rank 0              all buckets             buffers in host memory                          (below)
    every rank          all buckets             buffers on its GPU, which a server process shares (below)
    first of a stage    those of its stage      a process group              rlrun.runner.weights.broadcast

Stages send at the same time, each in a stream of its own: while engines load a bucket of one stage, all other
stages gather their next one.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import torch

from rlrun.runner.contracts.weight_updates import GroupAddress, Readers, WeightBucket
from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.page_locking import HOST
from rlrun.runner.weights.sharing import SharedBuffer


class BucketSender(Protocol):
    """Hands one rank's buckets to engines."""

    def begin(self, readers: Readers) -> GroupAddress | None:
        """Prepares for these readers; returns the address of the process group to join, if there is one."""

    def send(self, bucket: Bucket, weights: WeightSet) -> dict[int, str]:
        """Gathers the next bucket and hands it over; returns the payload of each server process that reads
        from this rank, by the process's number; none where buckets are broadcast.

        Raises RuntimeError when this bucket, or the one before it, cannot be sent.
        """

    def finish(self) -> None:
        """Returns when the last bucket is sent. Raises RuntimeError when it cannot be."""

    def abort(self, reason: str) -> None:
        """Makes `send` or `finish` raise RuntimeError if it waits for engines; called from another thread."""

    def close(self) -> None:
        """Frees buffers and closes connections."""


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


class BucketStream:
    """One rank's view of one streamed set of weights. Every rank gathers; ranks with a sender also send."""

    def __init__(
        self, buckets: Sequence[Bucket], weights: WeightSet, version: int, sender: BucketSender | None
    ) -> None:
        """`sender`: None on ranks that only gather. The first rank of a stream always has one."""
        self._buckets = iter(buckets)
        self._weights = weights
        self._version = version
        self._sender = sender
        self._error: str | None = None

    def next(self) -> WeightBucket | None:
        """Returns the next bucket, without tensors at the end of the stream; None on ranks that only gather.

        Gathering is collective, so an error in sending must not keep this rank from gathering the remaining
        buckets: it is returned in the bucket instead of being raised.
        """
        bucket = next(self._buckets, None)
        if self._sender is None or self._error is not None:
            if bucket is not None:
                self._weights.skip(bucket)
            return None if self._sender is None else WeightBucket(self._version, error=self._error)
        try:
            if bucket is None:
                self._sender.finish()
                return WeightBucket(self._version, checksums=self._weights.checksums())
            payloads = self._sender.send(bucket, self._weights)
            return WeightBucket(self._version, bucket.slots, payloads)
        except RuntimeError as error:
            self._error = str(error)
            return WeightBucket(self._version, error=self._error)
