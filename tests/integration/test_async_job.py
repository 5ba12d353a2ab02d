"""Asynchronous jobs: engines generate while the trainer works."""

import json
import signal

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
    """It learnt, from samples that were fresh enough."""
    assert job.code == 0, job.output
    rewards = [line["rollout/reward/mean"] for line in job.metrics]
    assert rewards[0] < 0.3
    assert rewards[-1] > 0.6
    staleness = [line["rollout/staleness/max"] for line in job.metrics]
    assert max(staleness) == max_staleness
    assert staleness[0] == 0


def trained_prompts(job: Ended) -> list[int]:
    """The prompts of every step, as the rollout files have them."""
    found = []
    for step in range(1, len(job.metrics) + 1):
        packed = (job.folder.rollouts / f"step-{step}.jsonl.zst").read_bytes()
        rows = map(json.loads, zstandard.decompress(packed).splitlines())
        found += sorted({int(row["id"].partition("-")[0]) for row in rows})
    return found


@pytest.mark.parametrize("max_staleness", [1, 3])
def test_an_asynchronous_job_learns(jobs: Jobs, max_staleness: int) -> None:
    settings = ASYNC | {"rollout__max_staleness": max_staleness}
    job = jobs.run(f"async-{max_staleness}", **settings)
    check(job, max_staleness)
    prompts = trained_prompts(job)
    assert len(prompts) == len(set(prompts))


def test_a_killed_job_goes_on_and_trains_on_no_prompt_twice(jobs: Jobs) -> None:
    settings = ASYNC | {"checkpoint__interval": 2}
    hold = jobs.folder / "hold"
    hold.touch()
    jobs.environment["HOLD"] = str(hold)
    killed = jobs.start("killed-async", **settings, rewards=[{"type": "held"}])
    killed.until_step(3)  # the last checkpoint is of the second, and groups of later steps are under way
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    hold.unlink()
    job = jobs.run("killed-async", "--resume", **settings, rewards=[{"type": "held"}])
    assert job.code == 0, job.output
    assert [line["step"] for line in job.metrics] == list(range(1, 25))
    prompts = trained_prompts(job)
    assert len(prompts) == len(set(prompts))


def test_a_server_takes_new_weights_while_it_generates(jobs: Jobs) -> None:
    check(jobs.run("async-sglang", engine__python=python(), **SETTINGS | ASYNC))
