"""The interface that libraries use: the one with this host's address."""

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from rlrun.runner.host.network import interface_of, use_interface_of

INTERFACES = {"lo": ["127.0.0.1", "::1"], "eth0": ["192.168.1.9"], "ib0": ["10.0.0.7", "fe80::1%ib0"]}


@pytest.fixture(autouse=True)
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: [SimpleNamespace(address=ip) for ip in ips] for name, ips in INTERFACES.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(INTERFACES, 1)))


@pytest.mark.parametrize(
    ("host", "interface"),
    [
        ("127.0.0.1", "lo"),
        ("127.0.0.2", "lo"),
        ("localhost", "lo"),
        ("10.0.0.7", "ib0"),
        ("fe80::1", "ib0"),
        ("10.0.0.8", None),
        ("node-7", None),
    ],
)
def test_an_address_belongs_to_one_interface(host: str, interface: str | None) -> None:
    assert interface_of(host) == interface


@pytest.mark.parametrize(
    ("host", "given", "gloo", "nccl"),
    [
        pytest.param("127.0.0.1", None, "lo", "lo", id="one host"),
        pytest.param("127.0.0.1", "eth7", "eth7", "eth7", id="the user names another"),
        pytest.param("10.0.0.7", None, "ib0", None, id="several hosts"),
        pytest.param("10.0.0.7", "eth7", "eth7", "eth7", id="several hosts, the user names another"),
        pytest.param("10.0.0.8", None, None, None, id="an address of another host"),
    ],
)
def test_libraries_are_told_of_it(
    monkeypatch: pytest.MonkeyPatch, host: str, given: str | None, gloo: str | None, nccl: str | None
) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    use_interface_of(host)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == gloo
    assert os.environ.get("NCCL_SOCKET_IFNAME") == nccl
