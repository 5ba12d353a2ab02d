"""Streams weights bucket by bucket, so that only two buckets of a stream are in memory at a time.

                    buffer A                       buffer B
    next() call 1   gathers bucket 1
    next() call 2   engines load bucket 1          gathers bucket 2
    next() call 3   gathers bucket 3               engines load bucket 2
    …
    last call       waits until the last bucket is sent, returns the checksums of all of them

The driver makes call n + 1 while engines load bucket n, and gives them bucket n + 1 only when all of them
have loaded bucket n; this is why two buffers are enough. A rank hands buckets over with a BucketSender:

    sender on           of                      medium                                          carrier
    rank 0              all buckets             buffers in host memory                          tensor
    every rank          all buckets             buffers on its GPU, which a server process shares    tensor
    first of a stage    those of its stage      a process group                                 broadcast

Stages send at the same time, each in a stream of its own: while engines load a bucket of one stage, all other
stages gather their next one.
"""

from collections.abc import Sequence
from typing import Protocol

from rlrun.runner.contracts.weight_updates import GroupAddress, Readers, WeightBucket
from rlrun.runner.weights.buckets import Bucket, WeightSet


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
