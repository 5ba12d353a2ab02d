"""Engines that die or hang while a job runs: the job continues and trains on the same number of samples."""

from pathlib import Path

import pytest

from tests.fault.conftest import STEPS
from tests.fault.ids import check_each_once
from tests.fault.moments import Fault, main_with
from tests.fault.test_ends import assert_nothing_left
from tests.integration.jobs import ROLLOUT_ONLY, Ended, Jobs
from tests.tiny_models import make_tiny_model


def check(job: Ended, restarts: int) -> None:
    """Every step was taken, with all its samples; the engine was started again so many times."""
    assert job.code == 0, job.output
    assert [line["step"] for line in job.metrics] == list(range(1, STEPS + 1))
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in job.metrics)
    assert job.output.count("starting engine 0 again") == restarts
    check_each_once(job)
    print("\n".join(line for line in job.output.splitlines() if "is back after" in line))


def test_engines_that_die_or_hang_at_any_moment_change_nothing_that_is_learnt(
    jobs: Jobs, reference: Ended
) -> None:
    faults = [
        Fault("engine 0", "generation", 3),
        Fault("engine 0", "weight sync", 7),
        Fault("engine 0", "training", 8),  # the engine is idle
        Fault("engine 0", "generation", 13, hangs=True),
    ]
    budget = {"fault_tolerance__engine_restarts": 4, "fault_tolerance__engine_timeout": 10.0}
    running = jobs.start("engine-lost", main=main_with(faults), trainer__steps=STEPS, **budget)
    running.until_step(1)
    processes = running.children()
    ended = running.wait()
    check(ended, restarts=4)
    assert "engine 0 died: " in ended.output
    assert "engine 0 hangs: 'ping' did not end within 10 s; its process is stopped (SIGSTOP)" in ended.output
    assert ended.curve == reference.curve
    assert_nothing_left(processes, ended)


@pytest.mark.slow  # tests/runner/engines/pool/test_supervisor.py sends requests of a lost engine to another
def test_the_other_engine_takes_over_the_requests_of_a_killed_engine(joining_jobs: Jobs) -> None:
    faults = [Fault("engine 0", "generation", 30)]
    settings = {"trainer__steps": STEPS, "deterministic": False, "engine__count": 2}
    check(joining_jobs.run("engine-killed-of-two", main=main_with(faults), **settings), restarts=1)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_next"])
def test_an_engine_that_dies_within_conversations_computes_their_states_again(
    family: str, joining_jobs: Jobs, tmp_path: Path
) -> None:
    """Later turns continue kept states, until the engine that has them is killed."""
    model = make_tiny_model(tmp_path / "model", family, scale=0.05, tied=True, pad_token_id=None)
    settings = {
        "model__path": str(model),
        "trainer__steps": STEPS,
        "deterministic": False,
        "rollout__function__type": "two_turns",
    }
    faults = [Fault("engine 0", "generation", 70)]
    ended = joining_jobs.run(f"killed-{family}", main=main_with(faults), **settings)
    check(ended, restarts=1)
    assert all(line["rollout/prefix_cache_hit_rate"] > 0.2 for line in ended.metrics)


@pytest.mark.slow
def test_a_job_ends_when_its_restarts_are_spent(joining_jobs: Jobs) -> None:
    faults = [Fault("engine 0", "generation", 3), Fault("engine 0", "generation", 60)]
    settings = ROLLOUT_ONLY | {"trainer__steps": 100_000, "fault_tolerance__engine_restarts": 1}
    ended = joining_jobs.run("restarts-spent", main=main_with(faults), **settings)
    assert ended.code == 3
    assert "is back after" in ended.output
    assert "failed: engine 0 died" in ended.output
