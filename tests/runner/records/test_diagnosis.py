"""The sentence that `rlrun status` says about the speed of a run."""

from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.records.diagnosis import STEPS, find_bottleneck
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved

BASE = Path(__file__).parents[2] / "specs" / "base.toml"
ASYNC = ('rollout.mode="async"', 'cluster.placement="disaggregated"')
STEP = {"step_time": 10.0, "rollout_time": 3.0, "train_time": 3.5, "weight_sync_time": 1.0}


def spec_with(*overrides: str) -> Spec:
    return resolved(load_checked_spec([BASE], overrides).spec)


def step(**changes: float) -> dict[str, float]:
    """Metrics of a step: `rollout_…` for `rollout/…`, all others for `perf/…`."""
    metrics = {f"perf/{name}": value for name, value in STEP.items()}
    return metrics | {name if "/" in name else f"perf/{name}": value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("metrics", "overrides", "cause", "sentence"),
    [
        pytest.param(
            step(rollout_time=6.1), (), "generation",
            "The trainer waits 61 % of a step for generation: let no step wait for its longest samples",
            id="colocated engines",
        ),
        pytest.param(
            step(rollout_time=6.1), ('cluster.placement="disaggregated"',), "generation",
            'let engines generate while the trainer works (rollout.mode = "async"), or raise engine.count',
            id="engines of their own that wait for the trainer",
        ),
        pytest.param(
            step(rollout_time=6.1), (*ASYNC, "engine.count=2"), "generation",
            "for generation: raise engine.count (2), or rollout.max_staleness (1)", id="asynchronous engines",
        ),
        pytest.param(
            step(rollout_time=7.0, reward_wait_time=5.0), ("scoring.workers=3",), "rewards",
            "The trainer waits 50 % of a step for rewards alone: raise scoring.workers (3)",
            id="slow rewards",
        ),
        pytest.param(
            step(rollout_time=6.0, **{"rollout/retractions": 0.4}), (), "cache",
            "engines run out of KV cache and compute samples again: raise engine.max_cache_tokens",
            id="small cache",
        ),
        pytest.param(
            step(rollout_time=6.0, **{"rollout/retractions": 0.4}), ("engine.max_cache_tokens=4096",),
            "cache", "raise engine.max_cache_tokens (4096), or lower engine.max_running (256)",
            id="small cache by the spec",
        ),
        pytest.param(
            step(rollout_time=6.0, **{"rollout/waiting_for_cache": 0.3}), ('engine.type="sglang"',),
            "cache_wait",
            "room in the engines' KV cache: raise engine.sglang.mem_fraction_static, or engine.count",
            id="small cache of SGLang",
        ),
        pytest.param(
            step(rollout_time=6.0, **{"rollout/waiting_for_cache": 0.05}), (), "generation", "waits 60 %",
            id="few samples wait",
        ),
        pytest.param(
            step(rollout_time=6.0, **{"rollout/retractions": 0.01}), (), "generation", "waits 60 %",
            id="a sample in a hundred was computed again",
        ),
        pytest.param(
            step(rollout_time=3.0, **{"rollout/retractions": 0.4}), (), "training", "Training takes 35 %",
            id="small cache, but the trainer takes longer",
        ),
        pytest.param(
            step(rollout_time=6.0, **{"rollout/dropped/nonzero_std/all_equal": 100.0}), (), "dropped",
            "filters drop most groups: choose prompts that the policy sometimes solves", id="unused groups",
        ),
        pytest.param(
            step(rollout_time=6.0, **{"rollout/dropped/generation/timeout": 100.0}), (), "failed",
            "most groups fail: the log names the last error", id="failing groups",
        ),
        pytest.param(
            step(train_time=5.0), (), "training", "Training takes 50 % of a step", id="slow trainer",
        ),
        pytest.param(
            step(log_prob_time=4.0), (), "log_probs", 'trainer.old_log_probs = "rollout"', id="old log-probs",
        ),
        pytest.param(
            step(reference_time=3.0, teacher_time=3.0), (), "reference", "reference.engine",
            id="reference and teacher",
        ),
        pytest.param(
            step(weight_sync_time=4.0, sleep_time=1.0), (), "weights",
            "Weights on their way to the engines take 50 % of a step: raise rollout.batch_size",
            id="slow sync",
        ),
        pytest.param(
            step(eval_time=30.0), (), "evaluation", "Evaluation takes 75 % of the time: evaluate fewer rows",
            id="evaluation in each step",
        ),
    ],
)  # fmt: skip
def test_bottleneck(metrics: dict[str, float], overrides: tuple[str, ...], cause: str, sentence: str) -> None:
    bottleneck = find_bottleneck([metrics], spec_with(*overrides))
    assert bottleneck is not None
    assert bottleneck.cause == cause
    assert sentence in bottleneck.sentence


def test_a_run_without_a_trainer_has_no_trainer_that_waits() -> None:
    metrics = {"perf/step_time": 2.0, "perf/rollout_time": 1.9}
    bottleneck = find_bottleneck([metrics], spec_with())
    assert bottleneck is not None
    assert bottleneck.sentence.startswith("The run waits 95 % of a step for generation")


def test_the_first_step_compiles_and_old_steps_do_not_count() -> None:
    slow_start = [step(train_time=900.0), *[step(train_time=50.0)] * 3]
    bottleneck = find_bottleneck([*slow_start, *[step(rollout_time=6.0)] * STEPS], spec_with())
    assert bottleneck is not None
    assert (bottleneck.cause, bottleneck.share) == ("generation", pytest.approx(0.6))


def test_no_step_has_no_bottleneck() -> None:
    assert find_bottleneck([{"eval/sums/reward": 0.5}], spec_with()) is None
