"""Elastic engines: when Ray is asked for their room, and when that is given back."""

from typing import Any

import pytest

from rlrun.runner.cluster import ray_elastic
from rlrun.runner.cluster.placement import Bundle, BundleSlot, Placement
from rlrun.runner.cluster.ray_elastic import ElasticReservation
from rlrun.runner.contracts.errors import MachinesFailed

ENGINES = tuple((BundleSlot(number, 1, 0),) for number in (1, 2, 3))
PLACEMENT = Placement((Bundle(1, 0),) * 4, (0, 0, 1, 1), (BundleSlot(0, 1, 0),), ENGINES, (), 1)


class FakeNode:
    def __init__(self) -> None:
        self.answers = True

    def is_reachable(self) -> bool:
        return self.answers


class FakeRay:
    """A cluster with room for some groups of one bundle, in the order in which they were asked for."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.node = FakeNode()
        self.groups: list[int] = []
        self._asked = 0

    def placement_group(self, bundles: list[dict[str, float]], strategy: str) -> int:
        assert (bundles, strategy) == ([{"CPU": 1}], "STRICT_PACK")
        self._asked += 1
        self.groups.append(self._asked)
        return self._asked

    def remove_placement_group(self, group: int) -> None:
        self.groups.remove(group)

    def node_ids(self, group: int) -> list[str | None]:
        return ["node" if group in self.groups[: self.room] else None]

    @property
    def alive(self) -> dict[str, Any]:
        return {"node": self.node}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay(room=2)
    monkeypatch.setattr(ray_elastic.ray.util, "placement_group", fake.placement_group)
    monkeypatch.setattr(ray_elastic.ray.util, "remove_placement_group", fake.remove_placement_group)
    monkeypatch.setattr(ray_elastic, "node_ids", fake.node_ids)
    monkeypatch.setattr(ray_elastic, "alive_nodes", lambda: fake.alive)
    monkeypatch.setattr(ray_elastic, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(ray_elastic, "_OTHERS_SECONDS", -1.0)
    return fake


def placed(reserved: ElasticReservation) -> list[bool]:
    return [reserved.is_placed(slot) for (slot,) in ENGINES]


def test_a_job_begins_with_the_engines_that_the_cluster_has_room_for(fake: FakeRay) -> None:
    reserved = ElasticReservation(PLACEMENT)
    reserved.make(60.0)
    assert placed(reserved) == [True, True, False]
    assert len(fake.groups) == 3  # Ray goes on looking for the third
    fake.room = 3
    assert reserved.have_room(ENGINES[2], fake.alive)
    assert placed(reserved) == [True, True, True]


def test_a_job_does_not_begin_with_too_few_engines(fake: FakeRay) -> None:
    fake.room = 0
    with pytest.raises(MachinesFailed, match=r"room for 0 engines.*needs 1 \(engine\.min_count\)"):
        ElasticReservation(PLACEMENT).make(-1.0)


def test_an_engine_on_a_node_that_does_not_answer_has_no_room(fake: FakeRay) -> None:
    reserved = ElasticReservation(PLACEMENT)
    reserved.make(60.0)
    fake.node.answers = False
    assert not reserved.have_room(ENGINES[0], fake.alive)
    assert placed(reserved) == [False, True, False]


def test_engines_that_wait_for_room_give_way_to_ranks(fake: FakeRay) -> None:
    reserved = ElasticReservation(PLACEMENT)
    reserved.make(60.0)
    reserved.hold_back(True)
    assert fake.groups == [1, 2]
    assert not reserved.have_room(ENGINES[2], fake.alive)
    assert reserved.have_room(ENGINES[0], fake.alive)  # it has its node already
    reserved.hold_back(False)
    assert not reserved.have_room(ENGINES[2], fake.alive)
    assert fake.groups == [1, 2, 4]
