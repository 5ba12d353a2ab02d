"""Chooses the address at which agents reach the policy's endpoint."""

import ipaddress

import psutil


def check_address(value: str) -> str:
    """Returns an IP address or network as it was given; raises ValueError for anything else.

    Networks that contain every address are refused: the endpoint never listens on all interfaces.
    """
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError(
            f"{value!r} is neither an IP address nor a network such as 10.0.0.0/8; names are not accepted"
        ) from None
    if network.network_address.is_unspecified:
        raise ValueError(
            f"{value!r} contains all addresses; name one, or a network in which the driver's host has one"
        )
    return value


def address_in(value: str) -> str:
    """Returns this host's own address in a network, or the address itself if `value` is one.

    Raises ValueError if this host has no address in the network, or several.
    """
    network = ipaddress.ip_network(value, strict=False)
    if network.num_addresses == 1:
        return str(network.network_address)
    addresses = _own_addresses()
    inside = [address for address in addresses if ipaddress.ip_address(address) in network]
    if len(inside) != 1:
        number = f"{len(inside)} addresses ({', '.join(inside)})" if inside else "no address"
        raise ValueError(
            f"this host has {number} in {value}, and needs exactly one there; its addresses are "
            f"{', '.join(addresses)}"
        )
    return inside[0]


def _own_addresses() -> list[str]:
    """Returns the IP addresses of all interfaces of this host, without zones (`%eth0`)."""
    entries = (entry for entries in psutil.net_if_addrs().values() for entry in entries)
    candidates = dict.fromkeys(entry.address.partition("%")[0] for entry in entries)
    return [address for address in candidates if _is_address(address)]


def _is_address(text: str) -> bool:
    """Returns whether this is an IP address; interfaces also have hardware addresses."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
