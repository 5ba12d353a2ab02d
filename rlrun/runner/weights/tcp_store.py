"""Makes the store where processes of torch.distributed meet; on one host it is not reachable from outside."""

import ipaddress
import os
import socket
from datetime import timedelta

import torch.distributed as dist

_LOOPBACK = "lo"


def store_server(
    host: str, port: int, size: int, timeout: timedelta, *, wait_for_workers: bool
) -> dist.TCPStore:
    """Returns rank 0's store, listening at `port` (0: a free one).

    Within one host it listens at the loopback address only; torch itself would listen at every address.
    """
    descriptor = None
    if _is_loopback(host):
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


def stay_within_host(host: str) -> None:
    """Makes gloo and NCCL use the loopback interface in this process, if ranks meet at a loopback address.

    An interface that the environment already names is kept.
    """
    names = {name for _, name in socket.if_nameindex()}
    if _is_loopback(host) and _LOOPBACK in names:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, _LOOPBACK)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
