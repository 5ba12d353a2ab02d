"""Finds this host's network interface and free ports, for libraries and servers that would choose badly."""

import ipaddress
import os
import random
import socket
from contextlib import suppress
from pathlib import Path

import psutil

_LOOPBACK = "lo"
_FIRST_PORT = 20_000
"""Ray's workers listen on the ports from 10,002 to 19,999."""
_PORT_TRIES = 100
_KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def use_interface_of(host: str) -> None:
    """Makes gloo, and on loopback NCCL, use the interface of this host's address in this process.

    An interface that the environment already names is kept.
    """
    for name, value in interface_variables(host).items():
        os.environ.setdefault(name, value)


def interface_variables(host: str) -> dict[str, str]:
    """Returns the variables that name the interface with this host's address; none if there is no such one.

    Without them gloo takes the address of the host's name, which many hosts map to loopback: ranks of two
    nodes could not connect. NCCL avoids loopback by itself, and prefers fast interfaces.
    """
    interface = interface_of(host)
    if interface is None:
        return {}
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if is_loopback(host) else ("GLOO_SOCKET_IFNAME",)
    return dict.fromkeys(names, interface)


def interface_of(host: str) -> str | None:
    """Returns the interface of this host that has an address; None if no interface has it."""
    interface: str
    for interface, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == host for entry in addresses):
            return interface
    names = {name for _, name in socket.if_nameindex()}
    return _LOOPBACK if is_loopback(host) and _LOOPBACK in names else None


def is_loopback(host: str) -> bool:
    """Returns whether an address or name only reaches this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port(host: str) -> int:
    """Returns a port that is free on this address, from below those that the kernel hands out itself.

    A server binds its port after seconds of imports. A port of the kernel's choice could by then be the local
    end of somebody's connection. It is used only if the kernel's range leaves no other.
    """
    below = range(
        _FIRST_PORT, int(_KERNEL_RANGE.read_text().split()[0]) if _KERNEL_RANGE.exists() else _FIRST_PORT
    )
    # Not from `random` itself: processes with the same seed would choose the same port.
    for port in random.SystemRandom().sample(below, min(_PORT_TRIES, len(below))):
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
