"""Who may ask a server of ours: decided by a request's headers alone, before its body is read."""

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
    """What is answered instead."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of one server."""

    address: str
    """Where it listens: `127.0.0.1`, `0.0.0.0` for all addresses of the host."""
    key: str | None = None
    """Asked for as `Authorization: Bearer KEY`; None: no key is asked for here."""
    keyless: frozenset[str] = frozenset()
    """Paths that need no key."""

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused; None where it may pass. `headers` has names in any case.

        The name it was sent to keeps out pages that a browser was led to under a name of their own (DNS
        rebinding), and the type of its body keeps out forms of any page.
        """
        if not is_known_host(headers.get("Host", ""), self.address):
            return Refusal(403, f"this server is not called {headers.get('Host', '')!r}")
        open_to_all = self.key is None or path in self.keyless
        if not open_to_all and not is_key(bearer(headers), self.key or ""):
            return Refusal(401, "a key is needed: Authorization: Bearer KEY")
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            return Refusal(415, "a body must be JSON, with Content-Type: application/json")
        return None


def is_known_host(host: str, address: str) -> bool:
    """Whether a Host header names a server that listens at `address`, whatever the port."""
    name = _name(host)
    if not name:
        return False
    if name in _LOOPBACK or name == address.lower().strip("[]") or name in _own_names():
        return True
    # An address cannot be a name that somebody else's DNS server answers for.
    return address in ("0.0.0.0", "::", "") and _is_address(name)


def is_loopback(address: str) -> bool:
    """Whether only this host reaches what listens at an IP address."""
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def bearer(headers: Mapping[str, str]) -> str:
    """The key that a request brings; "" where it brings none."""
    match = _BEARER.fullmatch(headers.get("Authorization", ""))
    return match[1] if match else ""


def is_key(given: str, key: str) -> bool:
    """Whether this is the key; takes the same time however much of it is right."""
    return bool(key) and hmac.compare_digest(given.encode(errors="replace"), key.encode())


@cache
def _own_names() -> frozenset[str]:
    """What this host is called; asked once, since the full name may have to come from a DNS server."""
    name = socket.gethostname().lower()
    return frozenset({name, name.partition(".")[0], socket.getfqdn().lower()})


def _name(host: str) -> str:
    """Without the port, in lower case; "" where it is no host."""
    match = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\d+)?|([^\[\]:/@\s]+)(?::\d+)?", host)
    return (match[1] or match[2]).lower().rstrip(".") if match else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
