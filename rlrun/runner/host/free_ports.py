"""Finds a free port for a server that will take it only later."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_FIRST = 20_000
"""Ray's workers listen on the ports from 10,002 to 19,999."""
_TRIES = 100
_KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str) -> int:
    """Returns a port that is free on this address, from below those that the kernel hands out itself.

    A server binds its port after seconds of imports. A port of the kernel's choice could by then be the local
    end of somebody's connection. It is used only if the kernel's range leaves no other.
    """
    below = range(_FIRST, int(_KERNEL_RANGE.read_text().split()[0]) if _KERNEL_RANGE.exists() else _FIRST)
    # Not from `random` itself: processes with the same seed would choose the same port.
    for port in random.SystemRandom().sample(below, min(_TRIES, len(below))):
        with suppress(OSError):
            return take(host, port)
    return take(host, 0)


def take(host: str, port: int) -> int:
    """Binds the port for a moment (any free one if it is 0) and returns it. Raises OSError if it is taken."""
    with socket.socket() as listener:
        # Servers set this too: connections that ended a moment ago do not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        return int(listener.getsockname()[1])
