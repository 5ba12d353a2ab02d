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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rlrun.runner.contracts.weight_updates import (
    GroupAddress,
    Readers,
    StreamedWeights,
    StreamMember,
    WeightBucket,
)
from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.rank_weights import Gather, Tensors
from rlrun.runner.weights.relay import RelayedWeightSet
from rlrun.runner.weights.writer import SentModel, Writer
from rlrun.specs.derived.engine_groups import server_ranks


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


@dataclass(kw_only=True)
class StreamWriter(Writer):
    """Announces weights, and sends them bucket by bucket when engines are ready."""

    sent: SentModel
    announce: Callable[[int, int, int], StreamedWeights]
    """Returns the update, given its bytes, version, and processes per engine."""
    buckets: Sequence[Bucket]
    """Those of all streams."""
    gather: Gather
    """Yields the tensors of this rank's stream."""
    make_sender: Callable[[int], BucketSender] | None
    """Returns what hands buckets over, given the bytes of the largest; None on ranks that only gather."""
    stage: int | None = None
    """The pipeline stage of this rank's stream, where each stage has a stream; None: there is one of all."""
    leads: bool
    """Whether this rank is the first of its stream."""
    on_device: bool = False
    """Whether buckets are in the memory of the device, which engines share."""
    _sender: BucketSender | None = field(default=None, init=False)
    """Made at the first stream, with its buffers."""
    _stream: BucketStream | None = field(default=None, init=False)
    _version: int = field(default=-1, init=False)

    def write(self, version: int) -> StreamedWeights | None:
        """Announces the current weights; see Writer."""
        self._version = version
        if self.sent.source.rank != 0:
            return None
        size = sum(bucket.size for bucket in self.buckets)
        return self.announce(size, version, server_ranks(self.sent.spec))

    def begin(self, readers: Readers) -> StreamMember:
        """Begins to stream the announced weights to these readers; collective."""
        own, group = [b for b in self.buckets if self.stage in (None, b.stage)], None
        if self.make_sender is not None:
            self._sender = self._sender or self.make_sender(max(bucket.size for bucket in own))
            group = self._sender.begin(readers)
        weights = self._weight_set(self.gather(self.sent.dtype))
        self._stream = BucketStream(own, weights, self._version, self._sender)
        return StreamMember(self.stage or 0, group)

    def next_bucket(self) -> WeightBucket | None:
        """Sends the next bucket and returns its description; None on ranks that only gather.

        All ranks of a stream make this call together.
        """
        assert self._stream is not None, "`begin` comes first"
        return self._stream.next()

    def abort(self, reason: str) -> None:
        """Stops waiting for engines that cannot take the stream; called from another thread."""
        if self._sender is not None:
            self._sender.abort(reason)

    def release_buffers(self) -> None:
        """Frees buffers on the device, if they are there."""
        if self.on_device and self._sender is not None:
            self._sender.close()
            self._stream = None  # with a pipeline it has buffers, too

    def close(self) -> None:
        """Removes the buffers, and leaves the process group."""
        if self._sender is not None:
            self._sender.close()
        self._sender = self._stream = None

    def _weight_set(self, tensors: Tensors) -> WeightSet:
        """Returns the tensors of one update, with checksums where servers are to be compared with them."""
        sent, stages = self.sent, self.sent.source.stages
        recorder = sent.recorder(self._version) if self.leads else None
        if self.on_device and stages.group is not None:
            device = sent.source.device
            return RelayedWeightSet(
                tensors, sent.form, recorder, buckets=self.buckets, stages=stages, device=device
            )
        return WeightSet(tensors, sent.form, recorder)
