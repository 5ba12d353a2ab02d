"""Weights handed over bucket by bucket, so that only two buckets of them are in memory at a time.

    call n     gather bucket n into one buffer, while engines load bucket n - 1 from the other
    the last   nothing left: wait for the last bucket, say what checksums there must be

A stream over shared memory gives handles; one over a process group begins to broadcast. Where every process
of a server computes on the device of a trainer's rank, each of these ranks hands the weights over on its own.
"""

import secrets
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from rlrun.runner.contracts.carriers import GroupAddress, Readers, WeightBucket
from rlrun.runner.weights.broadcast import BroadcastGroup
from rlrun.runner.weights.buckets import Bucket, WeightSet, views_of
from rlrun.runner.weights.sharing import SharedBuffer


class BucketSender(Protocol):
    """One of the ways out of a rank."""

    def begin(self, readers: Readers) -> GroupAddress | None:
        """Make ready for these."""

    def send(self, bucket: Bucket, weights: WeightSet) -> tuple[str, ...]:
        """Gather the next bucket and hand it over; payloads, where there are any. RuntimeError when it, or
        the one before, cannot be sent.
        """

    def finish(self) -> None:
        """Return when the last bucket is sent. RuntimeError when it cannot be."""

    def close(self) -> None:
        """Give up buffers and connections."""


class SharedOutlet:
    """Through buffers that servers open and copy from: in memory of the host, for all of them, or of this
    rank's device, for the process of a server that computes there too.
    """

    def __init__(self, size: int, device: torch.device, *, beside: int | None = None) -> None:
        """`size` of the largest bucket. `beside`: the process that computes on `device`, counted over all
        servers' processes; None: all are readers.
        """
        self._size = size
        self._device = device
        self._beside = beside
        self._readers = 0
        self._buffers: list[SharedBuffer] = []

    def begin(self, readers: Readers) -> None:
        """Nobody has to meet."""
        if self._beside is None:
            self._readers = readers.count
        else:
            self._readers = int(self._beside // readers.processes in readers.engines)
        while self._readers and len(self._buffers) < 2:
            self._buffers.append(SharedBuffer(self._size, self._device))

    def send(self, bucket: Bucket, weights: WeightSet) -> tuple[str, ...]:
        """Fill the buffer that was read before the last; gather for nobody where nobody reads."""
        if not self._readers:
            weights.pass_by(bucket)
            return ()
        self._buffers.reverse()
        weights.put(views_of(self._buffers[0].bytes, bucket), bucket)
        return self._buffers[0].payloads(bucket, self._readers)

    def finish(self) -> None:
        """Whoever reads answers for it."""

    def close(self) -> None:
        """Remove the buffers."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []


class BroadcastOutlet:
    """Through a process group, which is set up anew when its members change or it failed."""

    def __init__(self, size: int, host: str, device: torch.device, seconds: float) -> None:
        """`size` of the largest bucket; `seconds` to join, and for each broadcast."""
        self._size = size
        self._host = host
        self._device = device
        self._seconds = seconds
        self._group: BroadcastGroup | None = None
        self._members: Readers | None = None
        self._buffers: list[torch.Tensor] = []
        self._work: dist.Work | None = None

    def begin(self, readers: Readers) -> GroupAddress:
        """The address of the group of these members; the one of the last time where it is theirs."""
        if self._work is not None:  # the last stream was given up
            self._drop()
        if self._group is None or readers != self._members:
            self._drop()
            name = f"rlrun-weights-{secrets.token_hex(4)}"
            self._group = BroadcastGroup(name, self._host, readers.count, self._device, self._seconds)
            self._members = readers
        while len(self._buffers) < 2:
            self._buffers.append(torch.empty(self._size, dtype=torch.uint8, device=self._device))
        return self._group.address

    def send(self, bucket: Bucket, weights: WeightSet) -> tuple[str, ...]:
        """Gather while the bucket before is on its way."""
        self._buffers.reverse()
        weights.put(views_of(self._buffers[0], bucket), bucket)
        self.finish()
        if self._group is None:
            raise RuntimeError("the process group was given up")
        try:
            self._work = self._group.send(self._buffers[0][: bucket.size])
        except RuntimeError:
            self._drop()
            raise
        return ()

    def finish(self) -> None:
        """Wait for the broadcast that was begun last."""
        work, self._work = self._work, None
        if work is not None:
            try:
                work.wait()
            except RuntimeError:
                self._drop()
                raise

    def close(self) -> None:
        """Leave the group."""
        self._drop()
        self._buffers = []

    def _drop(self) -> None:
        group, self._group, self._work = self._group, None, None
        if group is not None:
            group.close()


class BucketStream:
    """One set of weights on its way; ranks with an outlet send it, the others gather."""

    def __init__(
        self, buckets: Sequence[Bucket], weights: WeightSet, version: int, outlet: BucketSender | None
    ) -> None:
        """`outlet`: None where nothing is handed over; the first rank always has one."""
        self._buckets = iter(buckets)
        self._weights = weights
        self._version = version
        self._outlet = outlet
        self._error: str | None = None

    def next(self) -> WeightBucket | None:
        """The next bucket, from ranks that hand it over; without tensors at the end.

        When it cannot be sent the error is in the bucket, not raised: all ranks must have gathered it.
        """
        bucket = next(self._buckets, None)
        if self._outlet is None or self._error is not None:
            if bucket is not None:
                self._weights.pass_by(bucket)
            return None if self._outlet is None else WeightBucket(self._version, error=self._error)
        try:
            if bucket is None:
                self._outlet.finish()
                return WeightBucket(self._version, checksums=self._weights.checksums())
            payloads = self._outlet.send(bucket, self._weights)
            return WeightBucket(self._version, bucket.slots, payloads)
        except RuntimeError as error:
            self._error = str(error)
            return WeightBucket(self._version, error=self._error)
