"""Streams weights through a process group of trainer rank 0 and the processes of all SGLang servers.

    rank 0: store on a free port ──address──▶ driver ──POST /init_weights_update_group──▶ servers, ranks 1 … n
            joins, then broadcasts bucket after bucket: gloo on CPU, NCCL on GPUs

The group is separate from the trainer's own. It is made from torch's backends directly, without
`dist.new_group`, so that no other code in this process knows it and it can be aborted at any time. The
servers make theirs with torch's helpers, so the keys in the store have the prefixes that torch itself adds.
"""

import secrets
from datetime import timedelta

import torch
import torch.distributed as dist

from rlrun.runner.contracts.weight_updates import GroupAddress, Readers
from rlrun.runner.weights.buckets import Bucket, WeightSet, views_of
from rlrun.runner.weights.tcp_store import store_server


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
        self._work: dist.Work | None = None

    def begin(self, readers: Readers) -> GroupAddress:
        """Returns the address of a group of these readers; the current group is kept if it is theirs."""
        if self._work is not None:  # the last stream was abandoned in the middle of a broadcast
            self._drop_group()
        if self._group is None or readers != self._members:
            self._drop_group()
            name = f"rlrun-weights-{secrets.token_hex(4)}"
            self._group = BroadcastGroup(name, self._host, readers.count, self._device, self._seconds)
            self._members = readers
        while len(self._buffers) < 2:
            self._buffers.append(torch.empty(self._size, dtype=torch.uint8, device=self._device))
        return self._group.address

    def send(self, bucket: Bucket, weights: WeightSet) -> tuple[str, ...]:
        """Gathers a bucket while the one before it is broadcast, then begins to broadcast it."""
        self._buffers.reverse()
        weights.copy_into(views_of(self._buffers[0], bucket), bucket)
        self.finish()
        if self._group is None:
            raise RuntimeError("the process group was closed after an earlier failure")
        try:
            self._work = self._group.send(self._buffers[0][: bucket.size])
        except RuntimeError:
            self._drop_group()
            raise
        return ()

    def finish(self) -> None:
        """Waits for the last broadcast. Raises RuntimeError when it fails; the group is dropped then."""
        work, self._work = self._work, None
        if work is not None:
            try:
                work.wait()
            except RuntimeError:
                self._drop_group()
                raise

    def close(self) -> None:
        """Leaves the group and frees the buffers."""
        self._drop_group()
        self._buffers = []

    def _drop_group(self) -> None:
        group, self._group, self._work = self._group, None, None
        if group is not None:
            group.close()


class BroadcastGroup:
    """Rank 0's side of one process group. A group that failed once cannot be used again."""

    def __init__(self, name: str, host: str, readers: int, device: torch.device, seconds: float) -> None:
        """Listens on a free port of `host` for `readers` processes.

        `seconds`: deadline for them to join, and of each broadcast.
        """
        self._timeout = timedelta(seconds=seconds)
        self._device = device
        self._store = store_server(host, 0, readers + 1, self._timeout, wait_for_workers=False)
        self._group: dist.ProcessGroup | None = None
        self.address = GroupAddress(
            name, host, self._store.port, readers + 1, "gloo" if device.type == "cpu" else "nccl"
        )

    def send(self, buffer: torch.Tensor) -> dist.Work:
        """Begins to broadcast a buffer, which must not change until the returned work is done.

        The first call waits for the readers to join. Raises RuntimeError when they do not, or one is lost.
        """
        if self._group is None:
            self._group = self._join()
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = self._timeout
        return self._group.broadcast([buffer], options)

    def close(self) -> None:
        """Leaves the group. Readers that wait for a broadcast get an error at once."""
        if self._group is not None:
            self._group.abort()
        self._group = None
        self._store = None

    def _join(self) -> dist.ProcessGroup:
        # SGLang's init_custom_process_group prefixes keys with the name, torch's _new_process_group_helper
        # with the name again and then with the device type. Ranks meet only if all prefixes agree.
        name = self.address.name
        store = dist.PrefixStore(f"{name}/", dist.PrefixStore(name, self._store))
        store = dist.PrefixStore(f"{self._device.type}/", store)
        if self._device.type == "cpu":
            return dist.ProcessGroupGloo(store, 0, self.address.size, timeout=self._timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, 0, self.address.size, options)
