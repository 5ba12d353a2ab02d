"""Named rows: a layout, and the bundles and seats it leads to."""

from itertools import chain
from typing import Any

import pytest

from rlrun.runner.cluster.placement import Bundle, BundleSlot, Placement, match_reserved_bundles, place
from rlrun.runner.planning.plan import make_plan
from rlrun.specs.sections.job import Spec


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
        [BundleSlot(0, 1, 0)],
        [BundleSlot(0, 1, 0)],
    ),
    "the same, apart": (
        spec({}, {"placement": APART}),
        [Bundle(1, 0), Bundle(1, 0)],
        [BundleSlot(0, 1, 0)],
        [BundleSlot(1, 1, 0)],
    ),
    "two ranks share one engine's cores": (
        spec({"fsdp": 2}, {}, 1),
        [Bundle(2, 0), Bundle(1, 0)],
        [BundleSlot(0, 1, 0), BundleSlot(1, 1, 0)],
        [BundleSlot(0, 1, 0)],
    ),
    "colocated on two GPUs": (
        spec({"fsdp": 2}, {"gpus_per_node": 2}),
        [Bundle(1, 1), Bundle(1, 1)],
        [BundleSlot(0, 0.5, 0.5), BundleSlot(1, 0.5, 0.5)],
        [BundleSlot(0, 0.5, 0.5), BundleSlot(1, 0.5, 0.5)],
    ),
    "one rank, three engines, four GPUs": (
        spec({}, {"gpus_per_node": 4, "placement": APART}, 3),
        [Bundle(1, 1)] * 4,
        [BundleSlot(0, 1, 1)],
        [BundleSlot(1, 1, 1), BundleSlot(2, 1, 1), BundleSlot(3, 1, 1)],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_placement(name: str) -> None:
    one, bundles, ranks, engines = ROWS[name]
    placement = place(make_plan(one, cores=2))
    assert list(placement.bundles) == bundles
    assert list(placement.ranks) == ranks
    assert list(placement.engines) == [(seat,) for seat in engines]
    assert placement.strategy == "STRICT_PACK"
    assert placement.gpus == sum(bundle.gpus for bundle in bundles)


@pytest.mark.parametrize("name", ROWS)
def test_no_bundle_is_given_out_twice(name: str) -> None:
    placement = place(make_plan(ROWS[name][0], cores=2))
    for number, bundle in enumerate(placement.bundles):
        seats = [seat for seat in (*placement.ranks, *chain(*placement.engines)) if seat.bundle == number]
        assert sum(seat.cpus for seat in seats) <= bundle.cpus
        assert sum(seat.gpus for seat in seats) <= bundle.gpus


def test_engines_of_other_models_have_devices_of_their_own() -> None:
    others = [
        {"name": "judge", "path": "j", "count": 2},
        {"name": "far", "type": "external", "urls": ["http://h:1"]},
    ]
    rows = [
        ({}, [Bundle(2, 0), Bundle(2, 0), Bundle(2, 0)], [BundleSlot(1, 2, 0), BundleSlot(2, 2, 0)]),
        ({"gpus_per_node": 3}, [Bundle(1, 1)] * 3, [BundleSlot(1, 1, 1), BundleSlot(2, 1, 1)]),
    ]
    for cluster, bundles, seats in rows:
        document = spec({}, cluster).model_dump() | {"engines": others}
        plan = make_plan(Spec.model_validate(document), cores=6 if not cluster else 3)
        placement = place(plan)
        assert [(one.name, one.index) for one in plan.named_engines] == [("judge", 0), ("judge", 1)]
        assert list(placement.bundles) == bundles
        assert list(placement.named_engines) == [(seat,) for seat in seats]
        assert placement.ranks[0].bundle == placement.engines[0][0].bundle == 0


def test_several_nodes_are_packed_as_far_as_they_can_be() -> None:
    two_nodes = spec({"fsdp": 4}, {"nodes": 2, "gpus_per_node": 2})
    placement = place(make_plan(two_nodes, cores=2))
    assert placement.strategy == "PACK"
    assert [seat.bundle for seat in placement.ranks] == [0, 1, 2, 3]


def servers(parallel: dict[str, int], cluster: dict[str, Any], tensor: int) -> Placement:
    document = spec(parallel, cluster).model_dump() | {"engine": {"type": "sglang", "tensor": tensor}}
    return place(make_plan(Spec.model_validate(document), cores=8))


def test_a_server_over_gpus_sits_in_one_bundle_and_reaches_the_others() -> None:
    shared = servers({"fsdp": 4}, {"gpus_per_node": 4}, 2)
    assert list(shared.bundles) == [Bundle(2, 1)] * 4
    assert list(shared.ranks) == [BundleSlot(number, 1, 0.5) for number in range(4)]
    assert list(shared.engines) == [(BundleSlot(0, 1, 0.5, (1,)),), (BundleSlot(2, 1, 0.5, (3,)),)]
    apart = servers({"fsdp": 2}, {"gpus_per_node": 4, "placement": APART}, 2)
    assert list(apart.ranks) == [BundleSlot(0, 2, 1), BundleSlot(1, 2, 1)]
    assert list(apart.engines) == [(BundleSlot(2, 2, 1, (3,)),)]


def test_a_server_over_nodes_has_a_seat_on_each() -> None:
    placement = servers({"fsdp": 2}, {"nodes": 3, "gpus_per_node": 2, "placement": APART}, 4)
    assert list(placement.engines) == [(BundleSlot(2, 4, 1, (3,)), BundleSlot(4, 4, 1, (5,)))]
    assert placement.nodes == (0, 0, 1, 1, 2, 2)


FOUND = {
    "as planned": ("aabbcc", [0, 1, 2, 3, 4, 5]),
    "other nodes, each whole": ("ccaabb", [0, 1, 2, 3, 4, 5]),
    "mixed": ("abcabc", [0, 3, 1, 4, 2, 5]),
    "all on one that is larger": ("aaaaaa", [0, 1, 2, 3, 4, 5]),
    "ranks apart, which does no harm": ("abccdd", [0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("name", FOUND)
def test_gpus_of_a_server_are_looked_for_on_one_node(name: str) -> None:
    placement = servers({"fsdp": 2}, {"nodes": 3, "gpus_per_node": 2, "placement": APART}, 4)
    nodes, expected = FOUND[name]
    assert match_reserved_bundles(placement, nodes) == expected


def test_gpus_of_a_server_on_different_nodes_are_refused() -> None:
    placement = servers({"fsdp": 2}, {"nodes": 3, "gpus_per_node": 2, "placement": APART}, 4)
    with pytest.raises(ValueError, match="different nodes"):
        match_reserved_bundles(placement, "aabcde")


def test_without_large_servers_bundles_stay_as_they_are_numbered() -> None:
    placement = place(make_plan(spec({"fsdp": 4}, {"nodes": 2, "gpus_per_node": 2}), cores=2))
    assert match_reserved_bundles(placement, "abab") == [0, 1, 2, 3]
