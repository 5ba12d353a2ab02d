"""The nodes of a Ray cluster, and whether they still answer.

Ray notices up to half a minute late that a node is lost, because it allows for pauses. Until then it would
start processes on it. A node therefore counts as lost as soon as nothing listens where its raylet did.
"""

import socket
from dataclasses import dataclass
from typing import Any

from rlrun.runner.cluster.ray_environment import ray

_REACHED_SECONDS = 5.0


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
