"""Samples and prompts for the tests of this folder."""

from collections.abc import Callable

import numpy as np

from rlrun.runner.engines.native.engine.requests import Job, SamplingParams, group_jobs
from rlrun.runner.engines.native.engine.scheduler import Scheduler

MakeScheduler = Callable[..., Scheduler]


def job(prompt: list[int], seed: int = 0, name: str = "job", **params: object) -> Job:
    """A sample to run."""
    sampling = SamplingParams(**({"max_new_tokens": 20} | params))  # type: ignore[arg-type]
    return Job(name, np.array(prompt, np.int32), sampling, seed)


def random_prompts(count: int, seed: int = 0, shortest: int = 1, longest: int = 70) -> list[list[int]]:
    """Prompts of various lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(2, 320, rng.integers(shortest, longest + 1)).tolist() for _ in range(count)]


def run(scheduler: Scheduler, jobs: list[Job]) -> list[Job]:
    """Submit at once and run to the end."""
    scheduler.add(group_jobs(jobs))
    while scheduler.busy:
        scheduler.step()
    return jobs
