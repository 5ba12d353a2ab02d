"""Named rows: a layout, and the bundles and seats it leads to."""

from typing import Any

import pytest

from rlrun.runner.cluster.placement import Bundle, Seat, place
from rlrun.runner.planning.plan import make_plan
from rlrun.specs.job import Spec


def spec(parallel: dict[str, int], cluster: dict[str, Any], engines: int | None = None) -> Spec:
    return Spec.model_validate(
        {
            "model": {"path": "m"},
            "data": {"path": "d"},
            "rollout": {"batch_size": 8, "samples_per_prompt": 8},
            "trainer": {"steps": 1, "parallel": parallel},
            "engine": {"count": engines},
            "cluster": cluster,
        }
    )


APART = "disaggregated"
ROWS = {
    "one rank, one engine, two cores": (
        spec({}, {}),
        [Bundle(2, 0)],
        [Seat(0, 1, 0)],
        [Seat(0, 1, 0)],
    ),
    "the same, apart": (
        spec({}, {"placement": APART}),
        [Bundle(1, 0), Bundle(1, 0)],
        [Seat(0, 1, 0)],
        [Seat(1, 1, 0)],
    ),
    "two ranks share one engine's cores": (
        spec({"fsdp": 2}, {}, 1),
        [Bundle(2, 0), Bundle(1, 0)],
        [Seat(0, 1, 0), Seat(1, 1, 0)],
        [Seat(0, 1, 0)],
    ),
    "colocated on two GPUs": (
        spec({"fsdp": 2}, {"gpus_per_node": 2}),
        [Bundle(1, 1), Bundle(1, 1)],
        [Seat(0, 0.5, 0.5), Seat(1, 0.5, 0.5)],
        [Seat(0, 0.5, 0.5), Seat(1, 0.5, 0.5)],
    ),
    "one rank, three engines, four GPUs": (
        spec({}, {"gpus_per_node": 4, "placement": APART}, 3),
        [Bundle(1, 1)] * 4,
        [Seat(0, 1, 1)],
        [Seat(1, 1, 1), Seat(2, 1, 1), Seat(3, 1, 1)],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_placement(name: str) -> None:
    one, bundles, ranks, engines = ROWS[name]
    placement = place(make_plan(one, cores=2))
    assert list(placement.bundles) == bundles
    assert list(placement.ranks) == ranks
    assert list(placement.engines) == engines
    assert placement.strategy == "STRICT_PACK"
    assert placement.gpus == sum(bundle.gpus for bundle in bundles)


@pytest.mark.parametrize("name", ROWS)
def test_no_bundle_is_given_out_twice(name: str) -> None:
    placement = place(make_plan(ROWS[name][0], cores=2))
    for number, bundle in enumerate(placement.bundles):
        seats = [seat for seat in (*placement.ranks, *placement.engines) if seat.bundle == number]
        assert sum(seat.cpus for seat in seats) <= bundle.cpus
        assert sum(seat.gpus for seat in seats) <= bundle.gpus


def test_engines_of_other_models_have_devices_of_their_own() -> None:
    others = [
        {"name": "judge", "path": "j", "count": 2},
        {"name": "far", "type": "external", "urls": ["http://h:1"]},
    ]
    rows = [
        ({}, [Bundle(2, 0), Bundle(2, 0), Bundle(2, 0)], [Seat(1, 2, 0), Seat(2, 2, 0)]),
        ({"gpus_per_node": 3}, [Bundle(1, 1)] * 3, [Seat(1, 1, 1), Seat(2, 1, 1)]),
    ]
    for cluster, bundles, seats in rows:
        document = spec({}, cluster).model_dump() | {"engines": others}
        plan = make_plan(Spec.model_validate(document), cores=6 if not cluster else 3)
        placement = place(plan)
        assert [(one.name, one.index) for one in plan.others] == [("judge", 0), ("judge", 1)]
        assert list(placement.bundles) == bundles
        assert list(placement.others) == seats
        assert placement.ranks[0].bundle == placement.engines[0].bundle == 0


def test_several_nodes_are_packed_as_far_as_they_can_be() -> None:
    two_nodes = spec({"fsdp": 4}, {"nodes": 2, "gpus_per_node": 2})
    placement = place(make_plan(two_nodes, cores=2))
    assert placement.strategy == "PACK"
    assert [seat.bundle for seat in placement.ranks] == [0, 1, 2, 3]
