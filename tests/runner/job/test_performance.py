from dataclasses import replace
from typing import Any

import pytest

from rlrun.models.config_json import architecture
from rlrun.runner.contracts.step_clock import Span
from rlrun.runner.job.performance import (
    ComputeBudget,
    StepUsage,
    Times,
    gaps,
    gpus_of_job,
    memory_metrics,
    merge,
    overlap,
    reward_wait,
)
from rlrun.runner.planning.hardware import find_gpu
from rlrun.runner.planning.plan import make_plan
from tests.resolved_specs import resolved, resolved_trainer

MODEL = architecture(
    {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
    }
)


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


@pytest.mark.parametrize(
    ("times", "merged"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(2, 3), (0, 1)], [(0, 1), (2, 3)], id="apart"),
        pytest.param([(0, 2), (1, 3), (3, 4)], [(0, 4)], id="overlapping and touching"),
        pytest.param([(0, 9), (1, 2)], [(0, 9)], id="one within another"),
    ],
)
def test_merge(times: Times, merged: Times) -> None:
    assert merge(times) == merged


def test_the_time_in_which_only_one_of_two_works() -> None:
    waiting, rewards, engines = [(0, 10)], [(2, 5), (6, 12)], [(1, 3), (7, 8)]
    assert overlap(overlap(waiting, rewards), gaps(engines)) == [(3, 5), (6, 7), (8, 10)]


@pytest.mark.parametrize(
    ("cluster", "counts"),
    [
        ({"gpus_per_node": 4}, (4, 4)),
        ({"gpus_per_node": 6, "placement": "disaggregated"}, (4, 2)),
        ({}, None),
    ],
)
def test_who_has_how_many(cluster: dict[str, Any], counts: tuple[int, int] | None) -> None:
    document = {
        "model": {"path": "a/b"},
        "data": {"type": "jsonl"},
        "trainer": {"steps": 1, "parallel": {"fsdp": 4}},
        "cluster": cluster,
    }
    plan = make_plan(resolved(document), cores=2)
    found = gpus_of_job(plan, MODEL, resolved_trainer(steps=1), find_gpu("H200"))
    assert (found and (found.trainer, found.engines)) == counts


def test_training_is_six_operations_a_parameter_and_attention_to_all_tokens_before() -> None:
    gpus = ComputeBudget(trainer=2, engines=2, flops=1e6, token_operations=6000, attention=10)
    work = gpus.training_flops([100, 10])
    assert work == 6 * (100 * (1000 + 10 * 100) + 10 * (1000 + 10 * 10))
    assert gpus.utilisation(work, seconds=4.0) == pytest.approx(work / 8e6)
    assert replace(gpus, flops=None).utilisation(work, 4.0) is None


def test_a_token_meets_every_matrix_once() -> None:
    plan = make_plan(
        resolved(
            {
                "model": {"path": "a/b"},
                "data": {},
                "trainer": {"steps": 1},
                "cluster": {"gpus_per_node": 1},
            }
        )
    )
    found = gpus_of_job(plan, MODEL, resolved_trainer(steps=1), None)
    assert found is not None and found.flops is None
    matrices = 2 * (64 * 12 * 16 + 3 * 64 * 96) + 64 * 320
    assert 6 * matrices < found.token_operations < 6.06 * matrices
    assert found.attention == 2 * 4 * 16
