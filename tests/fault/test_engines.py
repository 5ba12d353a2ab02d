"""Engines that die or hang while a job runs: it goes on, and trains on as many samples as it would have."""

import signal

import psutil
import pytest

from tests.fault.test_ends import assert_nothing_left
from tests.integration.jobs import Ended, Jobs, Running

STEPS = 30


def check(job: Ended) -> None:
    """Every step was taken, with all its samples; the engine was started again."""
    assert job.code == 0, job.output
    assert [line["step"] for line in job.metrics] == list(range(1, STEPS + 1))
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in job.metrics)
    assert job.output.count("starting engine 0 again") == 1


def hurt(running: Running, number: signal.Signals, engine: str = "engine 0") -> None:
    """Send an engine's process a signal, once the job has done a step."""
    running.until_step(1)
    psutil.Process(running.pid(engine)).send_signal(number)


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_engine_that_is_killed_is_started_again(jobs: Jobs, deterministic: bool) -> None:
    name = f"engine-killed-{deterministic}"
    running = jobs.start(name, trainer__steps=STEPS, deterministic=deterministic, engine__count=2)
    hurt(running, signal.SIGKILL)
    processes = running.children()
    ended = running.wait()
    check(ended)
    assert "engine 0 died: " in ended.output
    assert_nothing_left(processes, ended)


def test_a_killed_engine_changes_nothing_that_is_learnt(jobs: Jobs) -> None:
    whole = jobs.run("never-killed", trainer__steps=STEPS)
    running = jobs.start("once-killed", trainer__steps=STEPS)
    hurt(running, signal.SIGKILL)
    ended = running.wait()
    check(ended)
    assert ended.curve == whole.curve


def test_an_engine_that_hangs_is_killed_and_started_again(jobs: Jobs) -> None:
    running = jobs.start("engine-hung", trainer__steps=STEPS, fault_tolerance__engine_timeout=3.0)
    hurt(running, signal.SIGSTOP)
    check(running.wait())


def test_a_job_ends_when_its_restarts_are_spent(jobs: Jobs) -> None:
    running = jobs.start("restarts-spent", trainer__steps=100_000, fault_tolerance__engine_restarts=1)
    hurt(running, signal.SIGKILL)
    first = running.pid("engine 0")
    running.until(lambda: "is back after" in running.output, "the engine's return")
    running.until(lambda: running.pid("engine 0") != first, "its new process id")
    psutil.Process(running.pid("engine 0")).kill()
    ended = running.wait(60)
    assert ended.code == 3
    assert "failed: engine 0 died" in ended.output
