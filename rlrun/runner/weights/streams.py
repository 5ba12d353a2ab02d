"""Streams weights bucket by bucket, so that only two buckets of them are in memory at a time.

                    buffer A                       buffer B
    next() call 1   gathers bucket 1
    next() call 2   engines load bucket 1          gathers bucket 2
    next() call 3   gathers bucket 3               engines load bucket 2
    …
    last call       waits until the last bucket is sent, returns the checksums of all of them

The driver makes call n + 1 while engines load bucket n, and gives them bucket n + 1 only when all of them
have loaded bucket n; this is why two buffers are enough. A rank hands buckets over with a BucketSender:
through shared buffers (below) or a process group (rlrun.runner.weights.broadcast). Usually rank 0 is the only
sender. Where every server process computes on the GPU of a trainer rank, each of these ranks is a sender.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from rlrun.runner.contracts.weight_updates import GroupAddress, Readers, WeightBucket
from rlrun.runner.weights.buckets import Bucket, WeightSet, views_of
from rlrun.runner.weights.sharing import SharedBuffer


class BucketSender(Protocol):
    """Hands one rank's buckets to engines."""

    def begin(self, readers: Readers) -> GroupAddress | None:
        """Prepares for these readers; returns the address of the process group to join, if there is one."""

    def send(self, bucket: Bucket, weights: WeightSet) -> tuple[str, ...]:
        """Gathers the next bucket and hands it over; returns its payloads, if the sender uses payloads.

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

    def __init__(self, size: int, device: torch.device, *, beside: int | None = None) -> None:
        """`size`: bytes of the largest bucket. `beside`: number of the server process that computes on
        `device`, counted over the processes of all servers; None where all processes read.
        """
        self._size = size
        self._device = device
        self._beside = beside
        self._readers = 0
        self._buffers: list[SharedBuffer] = []

    def begin(self, readers: Readers) -> None:
        """Counts the processes that will read from this rank, and allocates two buffers for them."""
        if self._beside is None:
            self._readers = readers.count
        else:
            self._readers = int(self._beside // readers.processes in readers.engines)
        while self._readers and len(self._buffers) < 2:
            self._buffers.append(SharedBuffer(self._size, self._device))

    def send(self, bucket: Bucket, weights: WeightSet) -> tuple[str, ...]:
        """Fills the buffer that engines are not reading; without readers, only takes part in gathering."""
        if not self._readers:
            weights.skip(bucket)
            return ()
        self._buffers.reverse()
        weights.copy_into(views_of(self._buffers[0].bytes, bucket), bucket)
        return self._buffers[0].payloads(bucket, self._readers)

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
        """`sender`: None on ranks that only gather. Rank 0 always has one."""
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
