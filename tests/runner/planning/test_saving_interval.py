import math
import random

import pytest

from rlrun.runner.planning.saving_interval import NodeFailures, SavingPlan, plan_saving
from rlrun.runner.planning.storage import checkpoint_bytes
from rlrun.runner.planning.sync_time import DISK
from tests.runner.planning.test_sizing import planned_job

HOUR = 3600.0


def saving(*, step: float = 60.0, nodes: int = 1, **changes: float) -> SavingPlan:
    costs = {"waiting_seconds": 30.0, "writing_seconds": 0.0, "restart_seconds": 300.0} | changes
    return SavingPlan(step_seconds=step, node_seconds=6300 * HOUR, nodes=nodes, **costs)


def simulated(plan: SavingPlan, interval: int, failures: int) -> float:
    """The useful share of a run that fails so many times, counted attempt by attempt and step by step."""
    draw, useful, total = random.Random(1), 0.0, 0.0
    for _ in range(failures):
        while (time := draw.expovariate(1 / plan.failure_seconds)) < plan.restart_seconds:
            total += time  # it fails again before training goes on
        total += time
        clock, complete, written = plan.restart_seconds, 0, 0.0
        while clock < time:
            clock = max(clock + interval * plan.step_seconds, written) + plan.waiting_seconds
            written = clock + plan.writing_seconds
            complete += written <= time
        useful += complete * interval * plan.step_seconds
    return useful / total


@pytest.mark.parametrize("interval", [1, 10, 60])
@pytest.mark.parametrize(("nodes", "writing"), [(64, 0.0), (2048, 0.0), (2048, 600.0), (10_000, 200.0)])
def test_goodput_is_what_a_simulation_of_failures_gives(interval: int, nodes: int, writing: float) -> None:
    plan = saving(nodes=nodes, writing_seconds=writing)
    assert plan.goodput(interval) == pytest.approx(simulated(plan, interval, 4000), abs=0.02)


def test_the_best_interval_is_near_youngs() -> None:
    """sqrt(2 · cost · time between failures), https://doi.org/10.1145/361147.361115."""
    plan = saving(nodes=256)
    young = math.sqrt(2 * plan.waiting_seconds * plan.failure_seconds) / plan.step_seconds
    assert plan.best_interval == pytest.approx(young, rel=0.05)
    assert plan.goodput(plan.best_interval) > max(plan.goodput(plan.best_interval + d) for d in (-5, 5))


@pytest.mark.parametrize("nodes", [1, 100, 10**9])
def test_goodput_is_a_share_however_often_nodes_fail(nodes: int) -> None:
    plan = saving(nodes=nodes)
    assert all(0.0 <= plan.goodput(interval) <= 1.0 for interval in (1, 100, 10_000))
    assert plan.best_interval >= 1


def test_only_nodes_with_trainer_ranks_stop_training() -> None:
    job = planned_job(cluster={"nodes": 2, "gpus_per_node": 8, "placement": "disaggregated"})
    plan = plan_saving(job, 60.0, NodeFailures(hours=6300, restart_seconds=300))
    assert (plan.nodes, plan.failure_seconds) == (1, 6300 * HOUR)
    assert plan.writing_seconds == 0.0
    assert plan.waiting_seconds == checkpoint_bytes(job.model, job.spec.trainer, None, optimizer=True) / DISK


def test_training_waits_for_the_copy_of_a_checkpoint_alone_where_it_is_written_meanwhile() -> None:
    whole, copied = (
        plan_saving(planned_job(checkpoint={"asynchronous": asynchronous}), 60.0, NodeFailures(6300, 300))
        for asynchronous in (False, True)
    )
    assert copied.writing_seconds == whole.waiting_seconds > copied.waiting_seconds > 0


def test_a_job_is_not_told_to_save_after_its_end() -> None:
    job = planned_job(trainer={"steps": 7, "parallel": {"fsdp": 8}})
    assert plan_saving(job, 0.01, NodeFailures(hours=6300, restart_seconds=300)).best_interval == 7
