"""A process group of trainer rank 0 and the processes of SGLang servers, apart from the trainer's own.

    rank 0: store on a free port ──address──▶ driver ──POST /init_weights_update_group──▶ servers, 1 … n
            join, then broadcast bucket after bucket: gloo on CPU, NCCL on GPUs

The group stands on torch's backends directly, with the prefixes that torch itself gives a group's keys in the
store, so that it is known to nobody else in this process and can be given up at any time.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

from rlrun.runner.contracts.carriers import GroupAddress
from rlrun.runner.weights.tcp_store import store_server


class BroadcastGroup:
    """Rank 0's side of one group; not used again once it failed."""

    def __init__(self, name: str, host: str, readers: int, device: torch.device, seconds: float) -> None:
        """Listen on a free port of `host` for `readers` processes; `seconds` for them to join, and for each
        broadcast.
        """
        self._timeout = timedelta(seconds=seconds)
        self._device = device
        self._store = store_server(host, 0, readers + 1, self._timeout, wait_for_workers=False)
        self._group: dist.ProcessGroup | None = None
        self.address = GroupAddress(
            name, host, self._store.port, readers + 1, "gloo" if device.type == "cpu" else "nccl"
        )

    def send(self, buffer: torch.Tensor) -> dist.Work:
        """Begin to broadcast a buffer, which must stay as it is until the work is waited for.

        The first call waits for the others to join. RuntimeError when they do not, or a process is lost.
        """
        if self._group is None:
            self._group = self._join()
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = self._timeout
        return self._group.broadcast([buffer], options)

    def close(self) -> None:
        """Leave; whoever waits for a broadcast is told that this process is gone."""
        if self._group is not None:
            self._group.abort()
        self._group = None
        self._store = None

    def _join(self) -> dist.ProcessGroup:
        name = self.address.name
        store = dist.PrefixStore(f"{name}/", dist.PrefixStore(name, self._store))
        store = dist.PrefixStore(f"{self._device.type}/", store)
        if self._device.type == "cpu":
            return dist.ProcessGroupGloo(store, 0, self.address.size, timeout=self._timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, 0, self.address.size, options)
