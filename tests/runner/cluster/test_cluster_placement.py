"""Named rows: a layout, and the bundles and seats it leads to."""

from itertools import chain, groupby
from typing import Any

import pytest

from rlrun.runner.cluster.placement import Bundle, BundleSlot, Placement, match_nodes, place
from rlrun.runner.planning.plan import make_plan
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved


def spec(parallel: dict[str, int], cluster: dict[str, Any], engines: int | None = None) -> Spec:
    return resolved(
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
    assert placement.required["GPU"] == sum(bundle.gpus for bundle in bundles)
    assert placement.elastic == []


def test_a_job_needs_room_for_its_ranks_and_the_least_number_of_elastic_engines() -> None:
    spec = ROWS["one rank, three engines, four GPUs"][0]
    plan = make_plan(spec.with_sections(engine=spec.engine.with_sections(min_count=2)), cores=2)
    placement = place(plan)
    assert placement.by_node == [[0]]
    assert [slot.bundle for slot in placement.elastic] == [1, 2, 3]
    assert placement.needed == [[Bundle(1, 1)]] * 3
    assert placement.required == {"GPU": 3, "CPU": 3}


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
        plan = make_plan(resolved(document), cores=6 if not cluster else 3)
        placement = place(plan)
        assert [(one.name, one.index) for one in plan.named_engines] == [("judge", 0), ("judge", 1)]
        assert list(placement.bundles) == bundles
        assert list(placement.named_engines) == [(seat,) for seat in seats]
        assert placement.ranks[0].bundle == placement.engines[0][0].bundle == 0


def test_bundles_of_a_node_are_reserved_together() -> None:
    two_nodes = spec({"fsdp": 4}, {"nodes": 2, "gpus_per_node": 2})
    placement = place(make_plan(two_nodes, cores=2))
    assert placement.by_node == [[0, 1], [2, 3]]
    assert [seat.bundle for seat in placement.ranks] == [0, 1, 2, 3]


def servers(parallel: dict[str, int], cluster: dict[str, Any], tensor: int) -> Placement:
    document = spec(parallel, cluster).model_dump() | {"engine": {"type": "sglang", "tensor": tensor}}
    return place(make_plan(resolved(document), cores=8))


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


FOUR = servers({"fsdp": 8}, {"nodes": 4, "gpus_per_node": 2}, 1)
MIXED = place(make_plan(spec({"fsdp": 5}, {"nodes": 4, "gpus_per_node": 2, "placement": APART}, 3), cores=8))
HOSTS = {
    "a host for each": (FOUR, "abcd", [0, 1, 2, 3]),
    "hosts for two, mixed": (FOUR, "abab", [0, 2, 1, 3]),
    "one for all": (FOUR, "aaaa", [0, 1, 2, 3]),
    "one for two, mixed with others": (FOUR, "abac", [0, 2, 1, 3]),
    "nodes of equal bundles": (MIXED, "abab", [0, 2, 1, 3]),
}


@pytest.mark.parametrize("name", HOSTS)
def test_ranks_of_a_host_follow_one_another(name: str) -> None:
    placement, hosts, expected = HOSTS[name]
    assert placement.by_node == [[0, 1], [2, 3], [4, 5], [6, 7]]
    bundles = [[placement.bundles[number] for number in numbers] for numbers in placement.by_node]
    matches = match_nodes(bundles, hosts)
    assert matches == expected
    of_ranks = [hosts[matches[placement.nodes[rank.bundle]]] for rank in placement.ranks]
    assert len([host for host, _ in groupby(of_ranks)]) == len(set(of_ranks))


def test_a_node_takes_only_bundles_of_its_own_sizes() -> None:
    small, large = [Bundle(1, 0)], [Bundle(1, 0), Bundle(2, 0)]
    assert match_nodes([small, large, small, large], "abab") == [0, 1, 2, 3]
    assert match_nodes([small, large, large, small], "abba") == [0, 1, 2, 3]
    assert match_nodes([small, small, large, large], "abab") == [0, 1, 2, 3]
