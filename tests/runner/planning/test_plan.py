"""The plan as named rows: what a spec asks for, and where everything goes."""

from typing import Any

import pytest

from rlrun.runner.planning.device_map import DeviceLocation
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.rank_layout import Coordinates
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved


def spec_of(**sections: Any) -> Spec:
    trainer = {"steps": 10, **sections.pop("trainer", {})}
    base = {"model": {"path": "a/b"}, "data": {"type": "jsonl"}, "trainer": trainer}
    return resolved({**base, **sections})


def test_batch_numbers_and_steps() -> None:
    plan = make_plan(
        spec_of(rollout={"batch_size": 6, "samples_per_prompt": 4}, trainer={"optimizer_steps": 3})
    )
    assert (plan.batch.prompts, plan.batch.samples_per_prompt) == (6, 4)
    assert (plan.batch.global_batch_size, plan.batch.optimizer_steps) == (8, 3)
    assert (plan.steps, plan.optimizer_steps) == (10, 30)


def test_epochs_are_counted_when_the_rows_are_known() -> None:
    spec = spec_of(trainer={"steps": None, "epochs": 2}, rollout={"batch_size": 32})
    assert make_plan(spec).steps is None
    assert make_plan(spec).optimizer_steps is None
    assert make_plan(spec, rows=100).steps == 6
    with pytest.raises(ValueError, match="31 usable rows and a step needs 32"):
        make_plan(spec, rows=31)


def test_mesh_has_tensor_fastest() -> None:
    spec = spec_of(trainer={"parallel": {"replicate": 2, "fsdp": 2, "tensor": 2}})
    plan = make_plan(spec, cores=16)
    assert [rank.coordinates for rank in plan.ranks[:4]] == [
        Coordinates(0, 0, 0, 0, 0), Coordinates(0, 0, 0, 0, 1),
        Coordinates(0, 0, 1, 0, 0), Coordinates(0, 0, 1, 0, 1),
    ]  # fmt: skip
    assert plan.ranks[4].coordinates == Coordinates(0, 1, 0, 0, 0)
    assert [rank.data_rank for rank in plan.ranks] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_ranks_of_one_pipeline_and_context_group_see_the_same_samples() -> None:
    parallel = {"fsdp": 2, "context": 2, "pipeline": 2}
    plan = make_plan(spec_of(trainer={"parallel": parallel, "max_tokens_per_rank": 1000}), cores=16)
    assert [rank.data_rank for rank in plan.ranks] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert plan.ranks[5].coordinates == Coordinates(1, 0, 0, 1, 0)
    assert plan.micro_batch_tokens == 2000


@pytest.mark.parametrize(
    ("placement", "ranks", "engines", "cores", "threads"),
    [
        ("colocated", 1, 1, 2, ([2], [2])),
        ("colocated", 2, 1, 8, ([4, 4], [8])),
        ("colocated", 3, 1, 2, ([1, 1, 1], [2])),
        ("disaggregated", 1, 1, 2, ([1], [1])),
        ("disaggregated", 2, 2, 9, ([2, 2], [2, 2])),
        ("disaggregated", 2, 2, 1, ([1, 1], [1, 1])),
    ],
)
def test_cores_are_shared_by_those_who_work_at_once(
    placement: str, ranks: int, engines: int, cores: int, threads: tuple[list[int], list[int]]
) -> None:
    cluster = {"placement": placement}
    spec = spec_of(trainer={"parallel": {"fsdp": ranks}}, engine={"count": engines}, cluster=cluster)
    plan = make_plan(spec, cores=cores)
    assert ([rank.threads for rank in plan.ranks], [engine.threads for engine in plan.engines]) == threads
    assert all(rank.location == DeviceLocation(0, None) for rank in plan.ranks)


def test_threads_of_the_spec_win() -> None:
    plan = make_plan(spec_of(cluster={"threads": 3}), cores=64)
    assert plan.ranks[0].threads == plan.engines[0].threads == 3


def test_cpu_nodes_get_neighbouring_ranks_and_an_engine_each() -> None:
    spec = spec_of(cluster={"nodes": 2, "address": "h:1"}, trainer={"parallel": {"fsdp": 4}})
    plan = make_plan(spec, cores=8)
    assert [(rank.location.node, rank.threads) for rank in plan.ranks] == [(0, 4), (0, 4), (1, 4), (1, 4)]
    assert [(engine.location.node, engine.threads) for engine in plan.engines] == [(0, 8), (1, 8)]


def test_colocated_gpus_hold_a_rank_and_an_engine_each() -> None:
    cluster = {"nodes": 2, "gpus_per_node": 2, "address": "h:1"}
    plan = make_plan(spec_of(cluster=cluster, trainer={"parallel": {"fsdp": 4}}))
    places = [DeviceLocation(0, 0), DeviceLocation(0, 1), DeviceLocation(1, 0), DeviceLocation(1, 1)]
    assert [rank.location for rank in plan.ranks] == places
    assert [engine.location for engine in plan.engines] == places


def test_disaggregated_engines_take_the_gpus_that_are_left() -> None:
    cluster = {"gpus_per_node": 8, "placement": "disaggregated"}
    plan = make_plan(
        spec_of(cluster=cluster, trainer={"parallel": {"fsdp": 3, "tensor": 2}}, engine={"port": 4000})
    )
    assert [rank.location.gpu for rank in plan.ranks] == [0, 1, 2, 3, 4, 5]
    assert [(engine.location, engine.port) for engine in plan.engines] == [
        (DeviceLocation(0, 6), 4000),
        (DeviceLocation(0, 7), 4001),
    ]


@pytest.mark.parametrize(
    ("cluster", "parallel", "engines", "message"),
    [
        (
            {"gpus_per_node": 2},
            {"fsdp": 4},
            None,
            r"4 trainer ranks \(fsdp 4\) need 4 GPUs, and the job has 2 ",
        ),
        ({"gpus_per_node": 2}, {"fsdp": 2}, 3, r"engine.count 3 needs 3 GPUs, and the job has 2 "),
        (
            {"gpus_per_node": 4},
            {"fsdp": 2},
            None,
            r"2 engines use 2 GPUs, and the job has 4 .*: the remaining GPUs would be idle",
        ),
        (
            {"gpus_per_node": 2, "placement": "disaggregated"},
            {"fsdp": 2},
            None,
            r"at least one engine on separate GPUs .* need 3 GPUs, and the job has 2 ",
        ),
        (
            {"gpus_per_node": 4, "placement": "disaggregated"},
            {"fsdp": 2},
            3,
            r"count 3 .* need 5 GPUs",
        ),
        (
            {"gpus_per_node": 4, "placement": "disaggregated"},
            {"fsdp": 2},
            1,
            r"use 3 GPUs, .* has 4 ",
        ),
    ],
)
def test_a_layout_must_fit_the_gpus(cluster: Any, parallel: Any, engines: int | None, message: str) -> None:
    spec = spec_of(cluster=cluster, trainer={"parallel": parallel}, engine={"count": engines})
    with pytest.raises(ValueError, match=message):
        make_plan(spec)


SERVERS: dict[str, tuple[dict[str, Any], dict[str, int], dict[str, Any], list[list[tuple[int, int]]]]] = {
    "two of two, with the ranks": (
        {"gpus_per_node": 4},
        {"fsdp": 4},
        {"tensor": 2},
        [[(0, 0), (0, 1)], [(0, 2), (0, 3)]],
    ),
    "what the ranks leave": (
        {"gpus_per_node": 4, "placement": "disaggregated"},
        {"fsdp": 2},
        {"tensor": 2},
        [[(0, 2), (0, 3)]],
    ),
    "stages times tensor": (
        {"gpus_per_node": 4},
        {"fsdp": 4},
        {"tensor": 2, "sglang": {"pp_size": 2}},
        [[(0, 0), (0, 1), (0, 2), (0, 3)]],
    ),
    "one over two nodes": (
        {"nodes": 3, "gpus_per_node": 2, "placement": "disaggregated"},
        {"fsdp": 2},
        {"tensor": 4},
        [[(1, 0), (1, 1), (2, 0), (2, 1)]],
    ),
    "attention apart on the same GPUs": (
        {"gpus_per_node": 2},
        {"fsdp": 2},
        {"tensor": 2, "sglang": {"dp_size": 2, "enable_dp_attention": True, "ep_size": 2}},
        [[(0, 0), (0, 1)]],
    ),
    "larger than the trainer": (
        {"gpus_per_node": 2},
        {},
        {"tensor": 2, "count": 1},
        [[(0, 0), (0, 1)]],
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_servers_of_several_gpus(name: str) -> None:
    cluster, parallel, engine, places = SERVERS[name]
    plan = make_plan(
        spec_of(cluster=cluster, trainer={"parallel": parallel}, engine={"type": "sglang"} | engine), cores=8
    )
    assert [[(place.node, place.gpu) for place in each.locations] for each in plan.engines] == places


def test_processes_of_a_server_share_cores_with_the_ranks_beside_it() -> None:
    cluster = {"gpus_per_node": 4, "placement": "disaggregated"}
    engine = {"type": "sglang", "tensor": 2}
    plan = make_plan(spec_of(cluster=cluster, trainer={"parallel": {"fsdp": 2}}, engine=engine), cores=16)
    assert plan.ranks[0].threads == plan.engines[0].threads == 4


@pytest.mark.parametrize(
    ("cluster", "ranks", "engine", "message"),
    [
        (
            {"gpus_per_node": 4},
            4,
            {"tensor": 3},
            r"4 GPUs for rollout do not split evenly into servers of 3 .*1, 2, 4 GPUs would fit",
        ),
        (
            {"gpus_per_node": 4},
            4,
            {"tensor": 8},
            r"needs 8 GPUs, .* share the GPUs of 4 trainer ranks",
        ),
        ({"gpus_per_node": 4}, 4, {"tensor": 2, "count": 3}, r"engine.count 3 of 2 GPUs .* needs 6 GPUs"),
        (
            {"gpus_per_node": 4, "placement": "disaggregated"},
            2,
            {"tensor": 2, "sglang": {"pp_size": 2}},
            r"one engine of 4 GPUs \(engine.tensor 2 × pp_size 2\) .* need 6 GPUs, and the job has 4 ",
        ),
        (
            {"nodes": 2, "gpus_per_node": 4, "placement": "disaggregated"},
            2,
            {"tensor": 3},
            r"an engine would use GPUs 2 to 4, parts of several nodes with 4 GPUs each",
        ),
        (
            {"nodes": 3, "gpus_per_node": 2},
            6,
            {"tensor": 3},
            r"an engine would use GPUs 0 to 2, parts of several nodes with 2 GPUs each",
        ),
    ],
)
def test_servers_must_fit_gpus_and_nodes(cluster: Any, ranks: int, engine: Any, message: str) -> None:
    parts = {"trainer": {"parallel": {"fsdp": ranks}}, "engine": {"type": "sglang"} | engine}
    with pytest.raises(ValueError, match=message):
        make_plan(spec_of(cluster=cluster, **parts))


def test_other_models_may_take_several_gpus_too() -> None:
    judge = {"name": "judge", "path": "j", "type": "sglang", "tensor": 2}
    document = spec_of(cluster={"gpus_per_node": 3}).model_dump() | {"engines": [judge]}
    plan = make_plan(resolved(document))
    assert plan.named_engines[0].locations == (DeviceLocation(0, 1), DeviceLocation(0, 2))


def test_demonstrations_need_no_engine() -> None:
    plan = make_plan(spec_of(algorithm={"type": "sft"}, trainer={"global_batch_size": 16}))
    assert plan.engines == ()
    assert (plan.batch.prompts, plan.batch.samples, plan.optimizer_steps, plan.cache_tokens) == (
        16,
        16,
        10,
        0,
    )


def test_token_budgets() -> None:
    rollout = {"max_prompt_tokens": 100, "max_response_tokens": 28, "batch_size": 2, "samples_per_prompt": 3}
    plan = make_plan(spec_of(rollout=rollout, engine={"max_running": 10}))
    assert (plan.max_sample_tokens, plan.cache_tokens) == (128, 1280)
    evaluation = {
        "max_response_tokens": 8,
        "datasets": [{"name": "a"}, {"name": "b", "max_response_tokens": 60}],
    }
    plan = make_plan(spec_of(rollout=rollout, engine={"max_cache_tokens": 500}, eval=evaluation))
    assert (plan.max_sample_tokens, plan.cache_tokens) == (160, 500)


def test_groups_of_servers_take_the_gpus_in_their_order() -> None:
    engine = {
        "type": "sglang",
        "port": 30000,
        "groups": [{"count": 2}, {"count": 1, "tensor": 2}],
        "weight_sync": "disk",
        "weight_check": "none",
    }
    cluster = {"gpus_per_node": 8, "placement": "disaggregated"}
    plan = make_plan(spec_of(engine=engine, cluster=cluster, trainer={"parallel": {"fsdp": 4}}))
    gpus = [[location.gpu for location in engine.locations] for engine in plan.engines]
    assert gpus == [[4], [5], [6, 7]]
    assert [engine.group for engine in plan.engines] == [0, 0, 1]
    assert [engine.port for engine in plan.engines] == [30000, 30001, 30002]


def test_ranks_and_servers_fill_nodes_with_different_numbers_of_gpus() -> None:
    def plan_with(nodes: list[int], ranks: int, tensor: int) -> list[list[tuple[int, int | None]]]:
        cluster = {"nodes": len(nodes), "gpus_per_node": max(nodes), "node_gpus": nodes}
        cluster |= {"placement": "disaggregated"}
        engine = {"type": "sglang", "tensor": tensor}
        plan = make_plan(spec_of(engine=engine, cluster=cluster, trainer={"parallel": {"fsdp": ranks}}))
        processes = [[rank.location] for rank in plan.ranks] + [list(each.locations) for each in plan.engines]
        return [[(location.node, location.gpu) for location in each] for each in processes]

    assert plan_with([2, 1, 3], 3, 3) == [[(0, 0)], [(0, 1)], [(1, 0)], [(2, 0), (2, 1), (2, 2)]]
    assert plan_with([2, 1, 3], 2, 4)[2:] == [[(1, 0), (2, 0), (2, 1), (2, 2)]]
    with pytest.raises(ValueError, match="parts of several nodes with 2, 1, 3 GPUs; a server must"):
        plan_with([2, 1, 3], 2, 2)
    with pytest.raises(ValueError, match=r"4 trainer ranks \(fsdp 4\) and at least one engine .* \[2, 2\]"):
        plan_with([2, 2], 4, 1)


def test_groups_that_leave_gpus_idle_or_cross_nodes_are_refused() -> None:
    def plan_with(*groups: dict[str, Any], nodes: int = 1) -> None:
        cluster = {"gpus_per_node": 4, "placement": "disaggregated", "nodes": nodes}
        engine = {"type": "sglang", "groups": groups, "weight_sync": "disk", "weight_check": "none"}
        make_plan(spec_of(engine=engine, cluster=cluster, trainer={"parallel": {"fsdp": 2}}))

    with pytest.raises(ValueError, match=r"2 trainer ranks \(fsdp 2\) and 1 engine use 3 GPUs"):
        plan_with({"count": 1})
    with pytest.raises(ValueError, match=r"1 server of 1 GPU \+ 1 server of 2 GPUs \(engine.groups\)"):
        plan_with({}, {"tensor": 2})
    with pytest.raises(ValueError, match="an engine would use GPUs 3 to 4, parts of several nodes"):
        plan_with({}, {"tensor": 2}, {"count": 3}, nodes=2)


def test_groups_on_cpus_are_spread_over_the_nodes() -> None:
    plan = make_plan(spec_of(engine={"type": "sglang", "groups": [{"count": 2}, {"count": 1}]}), cores=4)
    assert [(engine.index, engine.group) for engine in plan.engines] == [(0, 0), (1, 0), (2, 1)]
