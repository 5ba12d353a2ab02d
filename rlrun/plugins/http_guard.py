"""Decides which requests rlrun's servers accept, from a request's headers alone, before its body is read."""

import hmac
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_BEARER = re.compile(r"Bearer +(\S+) *", re.IGNORECASE)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is refused."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of one server for accepting requests."""

    address: str
    """The address that the server listens at: `127.0.0.1`, or `0.0.0.0` for all addresses of the host."""
    key: str | None = None
    """The key that requests must send as `Authorization: Bearer KEY`; None if no key is required."""
    keyless: frozenset[str] = frozenset()
    """Paths that do not require a key."""

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Returns why a request is refused; None if it is accepted. Names in `headers` may have any case.

        Checking the Host header keeps out web pages that reach the server under their own name (DNS
        rebinding). Checking the content type keeps out forms of web pages, and checking the origin their
        WebSockets: browsers send it with each.
        """
        if not is_known_host(headers.get("Host", ""), self.address):
            return Refusal(403, f"this server is not called {headers.get('Host', '')!r}")
        open_to_all = self.key is None or path in self.keyless
        if not open_to_all and not is_key(bearer(headers), self.key or ""):
            return Refusal(401, "a key is needed: Authorization: Bearer KEY")
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            return Refusal(415, "a body must be JSON, with Content-Type: application/json")
        if "Upgrade" in headers and "Origin" in headers:
            return Refusal(403, "web pages may not open WebSockets of this server")
        return None


def is_known_host(host: str, address: str) -> bool:
    """Returns whether a Host header names a server that listens at `address`, with any port."""
    name = _name(host)
    if not name:
        return False
    if name in _LOOPBACK or name == address.lower().strip("[]") or name in _own_names():
        return True
    # An IP address is safe: no foreign DNS server can resolve it.
    return address in ("0.0.0.0", "::", "") and _is_address(name)


def is_loopback(address: str) -> bool:
    """Returns whether an IP address can only be reached from this host."""
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def bearer(headers: Mapping[str, str]) -> str:
    """Returns the key of a request; "" if it has none."""
    match = _BEARER.fullmatch(headers.get("Authorization", ""))
    return match[1] if match else ""


def is_key(candidate: str, key: str) -> bool:
    """Returns whether this is the key, in a time that does not depend on how much of it is right."""
    return bool(key) and hmac.compare_digest(candidate.encode(errors="replace"), key.encode())


@cache
def _own_names() -> frozenset[str]:
    """Returns the names of this host; cached, since the full name may have to come from a DNS server."""
    name = socket.gethostname().lower()
    return frozenset({name, name.partition(".")[0], socket.getfqdn().lower()})


def _name(host: str) -> str:
    """Returns a Host header's name without the port, in lower case; "" if it is not a valid host."""
    match = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\d+)?|([^\[\]:/@\s]+)(?::\d+)?", host)
    return (match[1] or match[2]).lower().rstrip(".") if match else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
