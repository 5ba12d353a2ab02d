"""Which samples a job trained on, as its rollout files have them."""

import json
from collections.abc import Iterator

import zstandard

from tests.integration.jobs import Ended

GROUPS, SAMPLES = 8, 4
"""Of a step of the jobs' spec; the files keep all of its samples."""


def trained_ids(job: Ended) -> list[list[str]]:
    """Ids of the samples of every step."""
    return [sorted(_ids(job, line["step"])) for line in job.metrics if line["step"]]


def check_each_once(job: Ended) -> None:
    """Every step has all its samples, and none is trained on twice."""
    steps = trained_ids(job)
    assert all(len(ids) == GROUPS * SAMPLES for ids in steps)
    every = [one for ids in steps for one in ids]
    assert len(every) == len(set(every))


def _ids(job: Ended, step: int) -> Iterator[str]:
    packed = (job.folder.rollouts / f"step-{step}.jsonl.zst").read_bytes()
    for line in zstandard.decompress(packed).splitlines():
        yield json.loads(line)["id"]
