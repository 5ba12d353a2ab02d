"""A lost node: what a job waits for before it starts processes again, and for how long."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from rlrun.runner.cluster import ray_reservation
from rlrun.runner.cluster.placement import Bundle, Placement
from rlrun.runner.cluster.ray_nodes import Node
from rlrun.runner.cluster.ray_reservation import Reservation
from rlrun.runner.contracts.errors import NodeLost

TWO_NODES = Placement((Bundle(1, 0), Bundle(1, 0)), (0, 1), (), (), ())


class FakeRay:
    """What Ray says about two groups of one bundle each: the id of the node of each, and the nodes."""

    def __init__(self, alive: dict[str, Node], placed: list[list[str | None]]) -> None:
        self.alive = alive
        self.placed = placed
        """By the number of the question."""
        self.questions = 0

    def node_ids(self, group: int) -> list[str | None]:
        if group == 0:
            self.questions += 1
        return [self.placed[min(self.questions, len(self.placed)) - 1][group]]


@pytest.fixture
def nodes() -> Iterator[dict[str, Node]]:
    """Two nodes that answer and one that does not."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    found = {name: Node(*one.getsockname()[:2]) for name, one in zip("abc", listeners, strict=True)}
    listeners[1].close()
    yield found
    for listener in listeners:
        with closing(listener):
            pass


def reservation(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Reservation:
    made = Reservation(TWO_NODES, "the cluster")
    made._groups = [0, 1]
    monkeypatch.setattr(ray_reservation, "alive_nodes", lambda: ray.alive)
    monkeypatch.setattr(ray_reservation, "node_ids", ray.node_ids)
    monkeypatch.setattr(ray_reservation, "_POLL_SECONDS", 0.0)
    return made


def test_a_job_waits_until_every_bundle_is_on_a_node_that_answers(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[list[str | None]] = [
        ["a", "b"],  # Ray has not noticed that b is lost
        ["a", "gone"],  # b was removed from the list of nodes
        ["a", None],  # Ray looks for another node
        ["a", "c"],
    ]
    ray = FakeRay(nodes, placed)
    made = reservation(ray, monkeypatch)
    made.wait_for_nodes(60.0)
    assert ray.questions == 4
    assert made._nodes == [[nodes["a"]], [nodes["c"]]]


def test_a_job_ends_where_no_node_takes_the_place_of_a_lost_one(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = reservation(FakeRay(nodes, [["a", "b"]]), monkeypatch)
    made._nodes = [[nodes["a"]], [nodes["b"]]]
    with pytest.raises(NodeLost, match=r"node 127\.0\.0\.1 of the cluster is lost.*with --resume"):
        made.wait_for_nodes(0.0)
