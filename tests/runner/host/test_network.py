"""The interface that libraries use: the one with this host's address."""

import os
import random
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rlrun.runner.host import network
from rlrun.runner.host.network import free_port, interface_of, use_interface_of

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


def test_a_free_port_is_none_that_the_kernel_gives_to_a_connection():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 20_000 <= free_port("127.0.0.1") < lowest


def test_processes_with_the_same_seed_get_different_ports():
    found = set()
    for _ in range(8):
        random.seed(1)
        found.add(free_port("127.0.0.1"))
    assert len(found) > 1


@pytest.mark.parametrize("first_of_the_kernel", ["1024", "20000"])
def test_the_kernel_chooses_if_its_range_leaves_no_other_port(tmp_path, monkeypatch, first_of_the_kernel):
    setting = tmp_path / "range"
    setting.write_text(f"{first_of_the_kernel}\t65535\n")
    monkeypatch.setattr(network, "_KERNEL_RANGE", setting)
    assert free_port("127.0.0.1") > 0


def test_a_port_that_somebody_listens_on_is_passed_over(tmp_path, monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        setting = tmp_path / "range"
        setting.write_text(f"{port + 2} 65535")
        monkeypatch.setattr(network, "_KERNEL_RANGE", setting)
        monkeypatch.setattr(network, "_FIRST_PORT", port)
        assert free_port("127.0.0.1") != port
