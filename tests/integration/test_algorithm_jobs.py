"""Algorithms with nothing set in whole asynchronous jobs: their terms act on stale samples."""

import math

import pytest

from rlrun.plugins.registry import build, names
from tests.integration.jobs import Jobs
from tests.integration.test_stale_ratio_job import STALE

ACTS = {
    "dppo": "train/clip_frac",
    "m2po": "train/clip_frac",
    "gmpo": "train/clip_frac",
    "gspo_token": "train/clip_frac",
    "kl_cov": "train/cov_frac",
}
"""The metric that is above 0 in a step in which the algorithm's own term acts."""
USUAL = ("dppo", "m2po")
"""Runs in the normal suite; the others are slow only because they are many."""
GENERATING = [
    name
    for name in names("algorithms")
    if (needs := build("algorithms", name, {}).needs).rollout and not needs.critic and not needs.teacher
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in GENERATING]
)
def test_an_asynchronous_job_trains(jobs: Jobs, name: str) -> None:
    job = jobs.run(name, algorithm__type=name, **STALE | {"trainer__lr": 3e-2})
    assert job.code == 0, job.output
    assert max(line["rollout/staleness/max"] for line in job.metrics) >= 1
    assert all(math.isfinite(line["train/loss"]) for line in job.metrics)
    assert max(line["train/grad_norm"] for line in job.metrics) > 0
    if name in ACTS:
        acting = [line[ACTS[name]] for line in job.metrics]
        assert 0 < max(acting) < 1, acting
