"""The policy's engines as groups."""

from typing import Any

from rlrun.specs.derived.engine_groups import policy_groups, server_ranks
from rlrun.specs.derived.weight_sync import has_rank_on_each_gpu
from rlrun.specs.problems.findings import Finding
from tests.resolved_specs import resolved


def spec_of(engine: dict[str, Any], **sections: Any) -> Any:
    base = {"model": {"path": "a/b"}, "data": {"type": "jsonl"}, "trainer": {"steps": 1}}
    return resolved(base | sections | {"engine": {"type": "sglang", **engine}})


def test_without_groups_all_engines_are_one_group() -> None:
    spec = spec_of({"count": 3, "tensor": 2})
    [group] = policy_groups(spec)
    assert group.section is spec.engine
    assert group.path == ("engine",)
    assert server_ranks(spec) == 2


def test_a_group_has_its_own_values_over_those_of_the_engine() -> None:
    shared = {"mem_fraction_static": 0.8, "max_loras_per_batch": 4}
    spec = spec_of(
        {
            "tensor": 2,
            "sglang": shared,
            "groups": [
                {"count": 3, "sglang": {"mem-fraction-static": 0.6, "chunked_prefill_size": 512}},
                {"tensor": 4},
            ],
        }
    )
    first, second = policy_groups(spec)
    assert (first.section.count, first.section.tensor) == (3, 2)
    own = {"mem-fraction-static": 0.6, "chunked_prefill_size": 512}
    assert first.section.sglang == {"max_loras_per_batch": 4} | own
    assert (second.section.count, second.section.tensor, second.section.sglang) == (1, 4, shared)
    assert second.section.weight_sync == spec.engine.weight_sync
    assert not second.section.groups
    assert server_ranks(spec) == 4


def test_findings_about_a_group_are_at_its_own_keys() -> None:
    spec = spec_of({"sglang": {"a": 1}, "groups": [{"sglang": {"b": 2}}, {"tensor": 2}]})
    first, second = policy_groups(spec)
    moved = first.own(Finding(("engine", "sglang", "b"), "is wrong"))
    assert moved is not None
    assert moved.path == ("engine", "groups", 0, "sglang", "b")
    assert first.own(Finding(("engine", "sglang", "a"), "is wrong")) is None
    assert first.own(Finding(("engine", "tensor"), "is wrong")) is None
    assert second.own(Finding(("engine", "tensor"), "is wrong")) is not None
    assert second.own(Finding(("rollout", "sglang", "b"), "is wrong")) is None


def test_a_rank_is_on_each_gpu_only_if_the_servers_of_all_groups_share_the_ranks_gpus() -> None:
    cluster = {"gpus_per_node": 4, "placement": "colocated"}
    groups = {"groups": [{"count": 2}, {"tensor": 2}], "weight_sync": "disk", "weight_check": "none"}
    trainer = {"steps": 1, "parallel": {"fsdp": 4}}
    assert has_rank_on_each_gpu(spec_of(groups, cluster=cluster, trainer=trainer))
    trainer = {"steps": 1, "parallel": {"fsdp": 2}}
    assert not has_rank_on_each_gpu(spec_of(groups, cluster=cluster, trainer=trainer))
