"""Elastic trainer ranks: which layouts a spec allows, and which of them a launch takes."""

from typing import Any

import pytest

from rlrun.runner.cluster.elastic_ranks import fits, layouts, layouts_in_words
from rlrun.runner.cluster.placement import place
from rlrun.runner.planning.plan import make_plan
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved


def spec_of(parallel: dict[str, int], cluster: dict[str, Any], **sections: Any) -> Spec:
    rollout = {"batch_size": 4, "samples_per_prompt": 4, "max_prompt_tokens": 64, "max_response_tokens": 64}
    trainer = {"steps": 1, "parallel": parallel}
    base = {"model": {"path": "m"}, "data": {"path": "d"}, "rewards": [{"type": "math"}]}
    base |= {"rollout": rollout, "trainer": trainer}
    return resolved({**base, "cluster": {"threads": 1, **cluster}, **sections})


EIGHT = {"nodes": 2, "gpus_per_node": 4}


@pytest.mark.parametrize(
    ("parallel", "cluster", "expected"),
    [
        pytest.param(
            {"fsdp": 8, "min_fsdp": 2}, EIGHT, [(8, (4, 4)), (4, (4,)), (2, (2,))], id="divisors of 16 only"
        ),
        pytest.param({"fsdp": 8, "min_fsdp": 3}, EIGHT, [(8, (4, 4)), (4, (4,))], id="the last one above"),
        pytest.param({"fsdp": 8, "min_fsdp": 8}, EIGHT, [(8, (4, 4))], id="no fewer"),
        pytest.param(
            {"fsdp": 4, "min_fsdp": 1, "tensor": 2},
            EIGHT,
            [(4, (4, 4)), (2, (4,)), (1, (2,))],
            id="tensor groups stay",
        ),
        pytest.param(
            {"fsdp": 4, "min_fsdp": 1},
            EIGHT | {"placement": "disaggregated"},
            [(4, (4, 4)), (2, (4, 2)), (1, (4, 1))],
            id="beside engines",
        ),
    ],
)
def test_layouts_have_fewer_ranks_with_the_same_batch(
    parallel: dict[str, int], cluster: dict[str, Any], expected: list[tuple[int, tuple[int, ...]]]
) -> None:
    count = {"count": 4} if "placement" in cluster else {}
    spec = spec_of(parallel, cluster, engine={"type": "native", **count})
    found = [(each.trainer.parallel.fsdp, each.cluster.gpus_of_nodes) for each in layouts(spec)]
    assert found == expected


@pytest.mark.parametrize(
    ("least", "words"),
    [
        (2, "fsdp = 8, or 4, 2 where there are devices for no more"),
        (5, "a launch needs fsdp = 8: every smaller one breaks a rule of the spec"),
    ],
)
def test_the_plan_names_the_layouts(least: int, words: str) -> None:
    spec = spec_of({"fsdp": 8, "min_fsdp": least}, EIGHT, engine={"type": "native"})
    assert layouts_in_words(spec) == words


@pytest.mark.parametrize(
    ("hosts", "fsdp"),
    [
        pytest.param([(4, 64), (4, 64)], 8, id="all"),
        pytest.param([(4, 64), (3, 64)], 4, id="a GPU less"),
        pytest.param([(8, 64)], 8, id="one large host"),
        pytest.param([(2, 64), (2, 64)], 2, id="no whole node"),
        pytest.param([(4, 64), (4, 2)], 4, id="no cores"),
        pytest.param([], None, id="nothing"),
    ],
)
def test_the_largest_layout_that_fits_is_taken(hosts: list[tuple[int, int]], fsdp: int | None) -> None:
    free = [{"GPU": float(gpus), "CPU": float(cpus)} for gpus, cpus in hosts]
    spec = spec_of({"fsdp": 8, "min_fsdp": 2}, EIGHT, engine={"type": "native"})
    chosen = next((each for each in layouts(spec) if fits(place(make_plan(each)), free)), None)
    assert (None if chosen is None else chosen.trainer.parallel.fsdp) == fsdp


def test_ranks_on_cpus_take_whole_nodes() -> None:
    spec = spec_of({"fsdp": 4, "min_fsdp": 1}, {"nodes": 2, "address": "h:1"})
    found = [(each.trainer.parallel.fsdp, each.cluster.nodes) for each in layouts(spec)]
    assert found == [(4, 2), (2, 1), (1, 1)]
