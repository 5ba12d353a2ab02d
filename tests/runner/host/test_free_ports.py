import random
import socket
from pathlib import Path

import pytest

from rlrun.runner.host import free_ports
from rlrun.runner.host.free_ports import free_port


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
    monkeypatch.setattr(free_ports, "_KERNEL_RANGE", setting)
    assert free_port("127.0.0.1") > 0


def test_a_port_that_somebody_listens_on_is_passed_over(tmp_path, monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        setting = tmp_path / "range"
        setting.write_text(f"{port + 2} 65535")
        monkeypatch.setattr(free_ports, "_KERNEL_RANGE", setting)
        monkeypatch.setattr(free_ports, "_FIRST", port)
        assert free_port("127.0.0.1") != port
