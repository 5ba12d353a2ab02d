"""Samples and prompts for the tests of this folder."""

from collections.abc import Callable

import numpy as np

from rlrun.runner.engines.native.engine.requests import SampleInProgress, SamplingParams, group_samples
from rlrun.runner.engines.native.engine.scheduler import Scheduler

MakeScheduler = Callable[..., Scheduler]


def new_sample(prompt: list[int], seed: int = 0, name: str = "sample", **params: object) -> SampleInProgress:
    """A sample to run."""
    sampling = SamplingParams(**({"max_new_tokens": 20} | params))  # type: ignore[arg-type]
    return SampleInProgress(name, np.array(prompt, np.int32), sampling, seed)


def random_prompts(count: int, seed: int = 0, shortest: int = 1, longest: int = 70) -> list[list[int]]:
    """Prompts of various lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(2, 320, rng.integers(shortest, longest + 1)).tolist() for _ in range(count)]


def run(scheduler: Scheduler, samples: list[SampleInProgress]) -> list[SampleInProgress]:
    """Submit at once and run to the end."""
    scheduler.add(group_samples(samples))
    while scheduler.busy:
        scheduler.step()
    return samples
