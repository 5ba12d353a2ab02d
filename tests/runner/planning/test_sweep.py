"""Layouts of one job on the same GPUs."""

from dataclasses import replace

import pytest

from rlrun.runner.planning.fit import COMFORTABLE
from rlrun.runner.planning.savings import phase_bytes
from rlrun.runner.planning.simulation import compare_alternatives
from rlrun.runner.planning.sweep import sweep
from rlrun.specs.sections.trainer import ParallelSpec
from tests.runner.planning.test_memory import QWEN3_30B_A3B, QWEN35_35B_A3B
from tests.runner.planning.test_sizing import planned_job


def test_layouts_use_every_gpu_and_fit_the_model() -> None:
    found = sweep(planned_job())
    assert len(found) > 20
    for each in found:
        spec, plan = each.job.spec, each.job.plan
        devices = {(rank.location.node, rank.location.gpu) for rank in plan.ranks}
        devices |= {(engine.location.node, engine.location.gpu) for engine in plan.engines}
        assert len(devices) == 8
        assert plan.batch.global_batch_size % spec.trainer.parallel.data_degree == 0
        assert planned_job().model.kv_heads % spec.trainer.parallel.tensor == 0
    assert {each.job.plan.colocated for each in found} == {True, False}


def test_those_that_fit_come_first_and_the_simpler_of_equals() -> None:
    found = sweep(planned_job())
    fits = [each.fits for each in found]
    assert fits == sorted(fits, reverse=True)
    best = found[0]
    assert best.sizing.estimate.step_seconds < 1.03 * min(each.sizing.estimate.step_seconds for each in found)
    assert not any("training needs" in warning for warning in best.sizing.warnings)


def test_layouts_that_do_not_fit_get_settings_that_save_memory() -> None:
    found = sweep(planned_job(device="L4"))
    comfortable = [each.is_comfortable for each in found if each.fits]
    assert comfortable == sorted(comfortable, reverse=True)
    helped = [each for each in found if each.savings]
    assert helped
    for each in helped:
        limit = COMFORTABLE * each.job.device.memory
        assert phase_bytes(each.job, "training") <= limit
        assert each.settings.items() >= {k: v for k, v in each.savings.items() if "parallel" not in k}.items()


def test_servers_of_several_gpus_are_tried_too() -> None:
    found = sweep(planned_job(engine={"type": "sglang"}))
    assert {each.job.spec.engine.tensor for each in found} >= {1, 2, 4}
    for each in found:
        assert each.settings["engine.tensor"] == each.job.spec.engine.tensor
        devices = {place.gpu for engine in each.job.plan.engines for place in engine.locations}
        assert len(devices) == sum(len(engine.locations) for engine in each.job.plan.engines)


def test_experts_are_shared_out_only_where_there_are_some() -> None:
    assert {each.job.spec.trainer.parallel.expert for each in sweep(planned_job())} == {1}
    sparse = sweep(replace(planned_job(), model=QWEN3_30B_A3B))
    assert {each.job.spec.trainer.parallel.expert for each in sparse} >= {1, 2, 4, 8}


def test_ranks_that_split_a_sequence_or_its_heads_divide_the_heads_of_gated_delta_net() -> None:
    delta = QWEN35_35B_A3B.delta
    assert delta is not None
    model = replace(QWEN35_35B_A3B, delta=replace(delta, key_heads=4))
    layouts = [each.job.spec.trainer.parallel for each in sweep(replace(planned_job(), model=model))]
    assert {layout.tensor * layout.context for layout in layouts} == {1, 2, 4}


def test_layers_are_divided_by_their_work() -> None:
    staged = [each.job.spec.trainer.parallel for each in sweep(planned_job())]
    divided = {each.pipeline: each.pipeline_layers for each in staged}
    assert divided[1] is None
    assert divided[4] == (10, 10, 10, 6)
    own = {"fsdp": 2, "pipeline": 4, "pipeline_layers": [9, 9, 9, 9]}
    kept = [each.job.spec.trainer.parallel for each in sweep(planned_job(trainer={"parallel": own}))]
    assert {each.pipeline_layers for each in kept if each.pipeline == 4} == {(9, 9, 9, 9)}


def test_both_policies_of_fsdp_are_tried_unless_the_spec_has_one() -> None:
    found = [each.job.spec.trainer.parallel for each in sweep(planned_job())]
    assert {each.reshard_after_forward for each in found if each.pipeline == 1} == {"default", "never"}
    assert {each.reshard_after_forward for each in found if each.pipeline == 2} == {"default", "always"}
    own = {"fsdp": 8, "reshard_after_forward": "always"}
    found = [each.job.spec.trainer.parallel for each in sweep(planned_job(trainer={"parallel": own}))]
    assert {each.reshard_after_forward for each in found if each.world_size > 1} == {"always"}


def test_the_settings_of_a_layout_select_it() -> None:
    own = {"fsdp": 4, "tensor": 2, "async_tensor": True, "sequence_parallel": True}
    for each in sweep(planned_job(trainer={"parallel": own})):
        parallel = each.job.spec.trainer.parallel
        assert parallel.async_tensor == (parallel.tensor > 1)
        assert ParallelSpec(**each.settings["trainer.parallel"]) == parallel


def test_each_split_is_simulated_in_the_modes_it_allows() -> None:
    found = list(compare_alternatives(planned_job(device="B200"), spread=0.5))
    modes = {(each.candidate.job.plan.colocated, each.max_staleness) for each in found}
    assert modes == {(True, 0), (False, 0), (False, 1), (False, 2)}
    for each in found:
        assert each.candidate.fits
        assert each.outcome.staleness <= each.max_staleness


@pytest.mark.slow
def test_thousands_of_gpus() -> None:
    many = planned_job(
        cluster={"nodes": 256, "gpus_per_node": 8, "address": "x:1"},
        trainer={"parallel": {"fsdp": 256, "tensor": 8}},
        rollout={"batch_size": 2048},
    )
    assert any(each.fits for each in sweep(many))


def test_layouts_of_several_nodes_need_no_cluster_yet() -> None:
    nodes = {"nodes": 2, "gpus_per_node": 4}
    without_address = sweep(planned_job(cluster=nodes))
    assert len(without_address) == len(sweep(planned_job(cluster={**nodes, "address": "host:6379"}))) > 0
