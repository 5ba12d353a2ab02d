"""Where processes meet: within one host only that host reaches it."""

import threading
from datetime import timedelta

import psutil
import torch.distributed as dist

from rlrun.runner.weights.tcp_store import store_server
from tests.waiting import PATIENCE

TIMEOUT = timedelta(seconds=PATIENCE)


def listeners(port: int) -> set[str]:
    """Addresses at which this process listens at a port."""
    connections = psutil.Process().net_connections("tcp")
    return {one.laddr.ip for one in connections if one.status == "LISTEN" and one.laddr.port == port}


def test_a_store_of_one_host_listens_there_alone() -> None:
    server = store_server("127.0.0.1", 0, 2, TIMEOUT, wait_for_workers=False)
    assert listeners(server.port) == {"127.0.0.1"}
    client = dist.TCPStore("127.0.0.1", server.port, 2, is_master=False, timeout=TIMEOUT)
    client.set("key", "value")
    assert server.get("key") == b"value"


def test_a_store_waits_for_its_workers_where_it_is_told_to() -> None:
    probe = store_server("127.0.0.1", 0, 1, TIMEOUT, wait_for_workers=False)
    port = probe.port
    del probe
    made: list[dist.TCPStore] = []
    waiting = threading.Thread(
        target=lambda: made.append(store_server("127.0.0.1", port, 2, TIMEOUT, wait_for_workers=True))
    )
    waiting.start()
    client = dist.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=TIMEOUT)
    waiting.join(PATIENCE)
    assert [one.port for one in made] == [client.port]
