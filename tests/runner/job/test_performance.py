from dataclasses import replace

import pytest

from rlrun.runner.contracts.step_clock import Span
from rlrun.runner.job.compute_budget import ComputeBudget
from rlrun.runner.job.performance import StepUsage, memory_metrics, reward_wait


def usage(**changes: object) -> StepUsage:
    values = {
        "step_seconds": 10.0,
        "parts": {"rollout": 4.0, "train": 4.0, "log_prob": 1.0, "weight_sync": 0.5},
        "rank_seconds": 4.5,
        "generated_tokens": 400,
        "trained_tokens": 800,
        "sync_bytes": 8,
    }
    return StepUsage(**(values | changes))  # type: ignore[arg-type]


def test_overhead_is_all_but_generation_grading_and_the_ranks_own_work() -> None:
    assert usage().overhead == pytest.approx(10.0 - 4.0 - 4.5)


def test_metrics_of_a_step() -> None:
    metrics = usage().metrics()
    assert metrics["perf/step_time"] == 10.0
    assert metrics["perf/rollout_time"] == 4.0
    assert metrics["perf/wait_ratio"] == pytest.approx(0.5)
    assert metrics["perf/tokens_per_second/generated"] == 100.0
    assert metrics["perf/tokens_per_second/trained"] == 200.0
    assert metrics["perf/weight_sync_bytes"] == 8


def test_speeds_of_gpus() -> None:
    """800 tokens in 4 s on two of 1 GFLOP/s, of 6 · 800 · 1000 operations."""
    gpus = ComputeBudget(trainer=2, engines=4, flops=1e9, token_operations=6000, attention=0)
    metrics = usage(gpus=gpus, training_flops=gpus.training_flops([800])).metrics()
    assert metrics["perf/tokens_per_second/generated_per_gpu"] == 25.0
    assert metrics["perf/tokens_per_second/trained_per_gpu"] == 100.0
    assert metrics["perf/mfu"] == pytest.approx(4.8e6 / 8e9)
    elsewhere = usage(gpus=replace(gpus, engines=0, flops=None), training_flops=4.8e6).metrics()
    assert "perf/tokens_per_second/generated_per_gpu" not in elsewhere
    assert "perf/mfu" not in elsewhere
    assert not any("gpu" in name or "mfu" in name for name in usage().metrics())


def test_the_time_in_which_rewards_alone_keep_the_job() -> None:
    spans = [Span("driver", "rollout", 0.0, 4.0), Span("engine 0", "requests", 0.0, 1.0)]
    spans += [Span("rewards", "scoring", 0.5, 3.0), Span("rewards", "scoring", 4.0, 9.0)]
    assert reward_wait(spans) == {"perf/reward_wait_time": 2.0}
    assert reward_wait(spans[:2]) == {}


def test_nothing_generated_has_no_speed() -> None:
    assert "perf/tokens_per_second/generated" not in usage(generated_tokens=0, parts={"train": 1.0}).metrics()


def test_memory_by_role() -> None:
    assert memory_metrics({"engine": 5.0}) == {"perf/peak_memory/engine": 5.0}
