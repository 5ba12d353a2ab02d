"""Finds the network interface that has this host's address, so that libraries do not choose another one."""

import ipaddress
import os
import socket

import psutil

_LOOPBACK = "lo"


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
