"""Asynchronous jobs: engines generate while the trainer works."""

import json
import signal
from itertools import accumulate

import pytest
import zstandard

from tests.integration.jobs import Ended, Jobs
from tests.integration.test_sglang_job import SETTINGS
from tests.sglang_cpu.servers import python

ASYNC = {
    "deterministic": False,
    "rollout__mode": "async",
    "cluster__placement": "disaggregated",
    "trainer__steps": 24,
}


def check(job: Ended, max_staleness: int = 1) -> None:
    """Samples were made while the trainer worked, and trained on while they were fresh enough."""
    assert job.code == 0, job.output
    staleness = [line["rollout/staleness/max"] for line in job.metrics]
    assert staleness[0] == 0
    assert 1 <= max(staleness) <= max_staleness


def check_learnt(job: Ended) -> None:
    """Its last steps are clearly better than its first."""
    rewards = [line["rollout/reward/mean"] for line in job.metrics]
    assert rewards[0] < 0.3
    assert max(rewards[-5:]) > 0.6


def trained_prompts(job: Ended) -> list[int]:
    """The prompts of every step, as the rollout files have them."""
    found = []
    for step in range(1, len(job.metrics) + 1):
        packed = (job.folder.rollouts / f"step-{step}.jsonl.zst").read_bytes()
        rows = map(json.loads, zstandard.decompress(packed).splitlines())
        found += sorted({int(row["id"].partition("-")[0]) for row in rows})
    return found


def check_prompts(job: Ended) -> None:
    """No prompt was trained on twice."""
    prompts = trained_prompts(job)
    assert len(prompts) == len(set(prompts))


@pytest.mark.slow
def test_a_job_that_updates_rarely_keeps_its_bound(jobs: Jobs) -> None:
    rare = {"rollout__weight_update_interval": 2, "rollout__max_staleness": 3, "trainer__steps": 12}
    job = jobs.run("async-rare", **ASYNC | rare)
    check(job, max_staleness=3)
    check_prompts(job)


def test_a_killed_and_resumed_job_learns_keeps_its_bound_and_trains_on_no_prompt_twice(jobs: Jobs) -> None:
    always = {"target": 99.0, "step": 1e-5, "high": 1e-4}
    settings = ASYNC | {"checkpoint__interval": 2, "algorithm__adaptive_entropy": always}
    hold = jobs.folder / "hold"
    hold.touch()
    jobs.environment["HOLD"] = str(hold)
    killed = jobs.start("killed-async", **settings)
    killed.until_step(3)  # the last checkpoint is of the second, and groups of later steps are under way
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    hold.unlink()
    job = jobs.run("killed-async", "--resume", **settings)
    check(job)
    check_learnt(job)
    assert [line["step"] for line in job.metrics] == list(range(1, 25))
    check_prompts(job)
    weights = [line["train/entropy_coef"] for line in job.metrics]
    assert weights == list(accumulate(range(23), lambda weight, _: min(weight + 1e-5, 1e-4), initial=0.0))


@pytest.mark.slow
def test_a_server_takes_new_weights_while_it_generates(jobs: Jobs) -> None:
    job = jobs.run("async-sglang", engine__python=python(), **SETTINGS | ASYNC)
    check(job)
    check_learnt(job)
