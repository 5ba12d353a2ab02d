"""The nodes of a Ray cluster, and whether they still answer.

Ray notices up to half a minute late that a node is lost, because it allows for pauses. Until then it would
start processes on it. A node therefore counts as lost as soon as nothing listens where its raylet did.
"""

import socket
from dataclasses import dataclass
from typing import Any

from rlrun.runner.cluster.ray_environment import ray

_REACHED_SECONDS = 5.0
_ALIVE = 0
"""`GcsNodeInfo.ALIVE`, whose module would be another private one."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node, by the address and port of its raylet."""

    address: str
    port: int

    def is_reachable(self) -> bool:
        """Tries to connect; blocks for some seconds where the host does not answer at all."""
        try:
            socket.create_connection((self.address, self.port), timeout=_REACHED_SECONDS).close()
        except OSError:
            return False
        return True


def alive_nodes() -> dict[str, Node]:
    """Returns the nodes that Ray believes to be alive, by id."""
    return {
        entry["NodeID"]: Node(str(entry["NodeManagerAddress"]), int(entry["NodeManagerPort"]))
        for entry in ray.nodes()
        if entry["Alive"]
    }


def node_ids(group: Any) -> list[str | None]:
    """Returns the id of the node that holds each bundle of a placement group; None while it has no node."""
    table = ray.util.placement_group_table(group)
    ids = table["bundles_to_node_id"]
    placed = table["state"] == "CREATED"
    return [ids.get(number) or None if placed else None for number in range(len(table["bundles"]))]


def count_nodes(address: str) -> int:
    """Returns how many nodes a cluster has, without joining it; 0 while nothing answers at its address."""
    host, _, port = address.rpartition(":")
    if not Node(host, int(port)).is_reachable():  # Ray's client would print warnings
        return 0
    try:
        nodes = ray._raylet.GcsClient(address=address).get_all_node_info(timeout=_REACHED_SECONDS)
    except (ray.exceptions.RayError, OSError, RuntimeError):
        return 0
    return sum(node.state == _ALIVE for node in nodes.values())
