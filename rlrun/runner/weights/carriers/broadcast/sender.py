"""Streams weights through a process group of one trainer rank and the processes of all SGLang servers.

    sender: store on a free port ──address──▶ driver ──POST /init_weights_update_group──▶ servers, ranks 1 … n
            joins as rank 0, then broadcasts bucket after bucket: gloo on CPU, NCCL on GPUs

With a pipeline every stage has such a group: its first rank sends what the stage's ranks gather among
themselves, so no tensor passes through another stage, and each sender uses its own node's network.

The group is separate from the trainer's own. It is made from torch's backends directly, without
`dist.new_group`, so that no other code in this process knows it and it can be aborted at any time. The
servers make theirs with torch's helpers, so the keys in the store have the prefixes that torch itself adds.

When a server dies, gloo's calls fail at once. NCCL's may block until the end of time: joining waits inside
NCCL, and a started broadcast waits on the GPU. Each of these calls is therefore made in a thread of its own.
Rank 0 waits for the thread, and stops waiting when the driver aborts the group or the deadline has passed.
"""

import os
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from rlrun.runner.contracts.weight_updates import GroupAddress, Readers
from rlrun.runner.weights.buckets import Bucket, WeightSet
from rlrun.runner.weights.tcp_store import store_server

_POLL_SECONDS = 0.001
"""Time between two checks whether a broadcast has ended on the GPU."""


class BroadcastSender:
    """Sends buckets through a BroadcastGroup, which is replaced when its members change or it fails."""

    def __init__(self, size: int, host: str, device: torch.device, seconds: float) -> None:
        """`size`: bytes of the largest bucket. `seconds`: deadline to join, and of each broadcast."""
        self._size = size
        self._host = host
        self._device = device
        self._seconds = seconds
        self._group: BroadcastGroup | None = None
        self._members: Readers | None = None
        self._buffers: list[torch.Tensor] = []
        self._sending: Future[None] | None = None

    def begin(self, readers: Readers) -> GroupAddress:
        """Returns the address of a group of these readers; the current group is kept if it is theirs."""
        abandoned = self._sending is not None  # the last stream ended in the middle of a broadcast
        if abandoned or (self._group is not None and self._group.is_aborted):
            self._drop_group()
        if self._group is None or readers != self._members:
            self._drop_group()
            name = f"rlrun-weights-{secrets.token_hex(4)}"
            self._group = BroadcastGroup(name, self._host, readers.count, self._device, self._seconds)
            self._members = readers
        while len(self._buffers) < 2:
            self._buffers.append(torch.empty(self._size, dtype=torch.uint8, device=self._device))
        return self._group.address

    def send(self, bucket: Bucket, weights: WeightSet) -> dict[int, str]:
        """Gathers a bucket while the one before it is broadcast, then begins to broadcast it."""
        self._buffers.reverse()
        weights.fill(self._buffers[0], bucket)
        self.finish()
        if self._group is None:
            raise RuntimeError("the process group was closed after an earlier failure")
        self._sending = self._group.send(self._buffers[0][: bucket.size])
        return {}

    def finish(self) -> None:
        """Waits for the last broadcast. Raises RuntimeError when it fails; the group is dropped then."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        try:
            sending.result(2 * self._seconds)  # the deadline to join, and the deadline of the broadcast
        except (RuntimeError, TimeoutError) as error:
            readers = self._members.count if self._members else 0
            self._drop_group()
            reason = str(error) or f"it did not end within {2 * self._seconds:g} s"
            raise RuntimeError(f"the broadcast to {readers} engine processes failed: {reason}") from error

    def abort(self, reason: str) -> None:
        """Ends the wait for engines, from another thread; the call that waits raises RuntimeError."""
        if (group := self._group) is not None:
            group.abort(reason)

    def close(self) -> None:
        """Leaves the group and frees the buffers."""
        self._drop_group()
        self._buffers = []

    def _drop_group(self) -> None:
        group, self._group, self._sending = self._group, None, None
        if group is not None:
            group.close()


class BroadcastGroup:
    """The sender's side of one process group. A group that failed once cannot be used again."""

    def __init__(self, name: str, host: str, readers: int, device: torch.device, seconds: float) -> None:
        """Listens on a free port of `host` for `readers` processes.

        `seconds`: deadline for them to join, and of each broadcast.
        """
        self._timeout = timedelta(seconds=seconds)
        self._device = device
        self._store = store_server(host, 0, readers + 1, self._timeout, wait_for_workers=False)
        self._group: dist.ProcessGroup | None = None
        self._sending: Future[None] = Future()
        self._aborted: str | None = None
        self.address = GroupAddress(
            name, host, self._store.port, readers + 1, "gloo" if device.type == "cpu" else "nccl"
        )

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._aborted is not None

    def send(self, buffer: torch.Tensor) -> "Future[None]":
        """Begins to broadcast a buffer, which must not change until the future is done.

        The first call waits for the readers to join. The future has a RuntimeError when they do not, when one
        is lost, or when the group is aborted.
        """
        sending: Future[None] = Future()
        self._sending = sending
        if self._aborted is not None:
            sending.set_exception(RuntimeError(self._aborted))
            return sending
        filled = None if self._device.type == "cpu" else torch.cuda.Event()
        if filled is not None:
            filled.record()  # in the stream that fills the buffer
        arguments = (sending, buffer, filled)
        threading.Thread(target=self._settle, args=arguments, name="broadcast", daemon=True).start()
        return sending

    def abort(self, reason: str) -> None:
        """Makes the current broadcast, or the next one, fail with a RuntimeError; from any thread."""
        self._aborted = reason
        with suppress(InvalidStateError):  # it has just ended
            self._sending.set_exception(RuntimeError(reason))

    def close(self) -> None:
        """Leaves the group. Readers that wait for a broadcast get an error at once with gloo."""
        if self._group is not None:
            self._group.abort()
        self._group = None
        self._store = None

    def _settle(self, sending: "Future[None]", buffer: torch.Tensor, filled: torch.cuda.Event | None) -> None:
        """Broadcasts a buffer and settles its future, unless the group was aborted meanwhile."""
        try:
            if self._group is None:
                self._group = _join(self.address, self._store, self._device, self._timeout)
            if filled is None:
                self._broadcast(buffer).wait()
            else:
                self._broadcast_on_gpu(buffer, filled)
        except RuntimeError as error:
            with suppress(InvalidStateError):
                sending.set_exception(error)
        else:
            with suppress(InvalidStateError):
                sending.set_result(None)

    def _broadcast(self, buffer: torch.Tensor) -> dist.Work:
        assert self._group is not None
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = self._timeout
        return self._group.broadcast([buffer], options)

    def _broadcast_on_gpu(self, buffer: torch.Tensor, filled: torch.cuda.Event) -> None:
        """Returns when the GPU has sent the buffer.

        It has a stream of its own: in the default stream, a broadcast that never ends would keep the trainer
        from computing.
        """
        stream, sent = torch.cuda.Stream(self._device), torch.cuda.Event()
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            filled.wait(stream)
            self._broadcast(buffer).wait()
            sent.record(stream)
        deadline = time.monotonic() + self._timeout.total_seconds()
        while not sent.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"no engine took the bucket within {self._timeout.total_seconds():g} s")
            time.sleep(_POLL_SECONDS)


def _join(
    address: GroupAddress, store: dist.Store | None, device: torch.device, timeout: timedelta
) -> dist.ProcessGroup:
    # SGLang's init_custom_process_group prefixes keys with the name, torch's _new_process_group_helper
    # with the name again and then with the device type. Ranks meet only if all prefixes agree.
    name = address.name
    store = dist.PrefixStore(f"{name}/", dist.PrefixStore(name, store))
    store = dist.PrefixStore(f"{device.type}/", store)
    if device.type == "cpu":
        return dist.ProcessGroupGloo(store, 0, address.size, timeout=timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = 2 * timeout  # our own deadline comes first
    with _failures_end_only_their_group():
        return dist.ProcessGroupNCCL(store, 0, address.size, options)


@contextmanager
def _failures_end_only_their_group() -> Iterator[None]:
    """Makes NCCL groups that are created here abort themselves when they fail.

    By default torch ends the whole process: an engine that dies would take trainer rank 0 with it.
    """
    name, clean_up_only = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"
    before = os.environ.get(name)
    os.environ[name] = clean_up_only
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
