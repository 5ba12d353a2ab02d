"""Makes the store where processes of torch.distributed meet, which listens at one address of this host."""

import socket
from datetime import timedelta

import torch.distributed as dist

from rlrun.runner.host.network import interface_of


def store_server(
    host: str, port: int, size: int, timeout: timedelta, *, wait_for_workers: bool
) -> dist.TCPStore:
    """Returns rank 0's store, listening at `port` (0: a free one).

    It listens at `host` only, which is a loopback address within one host; torch itself would listen at every
    address.
    """
    descriptor = None
    if interface_of(host) is not None:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        port, descriptor = listener.getsockname()[1], listener.detach()
    return dist.TCPStore(
        host,
        port,
        size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=wait_for_workers,
        master_listen_fd=descriptor,
    )
