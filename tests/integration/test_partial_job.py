"""Jobs with partial rollouts: the next step continues unfinished samples, also after a kill."""

import signal
from collections import Counter
from itertools import pairwise

import numpy as np

from rlrun.plugins.types import Sample
from rlrun.runner.records.saved_rollouts import read_groups, rollout_path
from tests.integration.jobs import Ended, Jobs

PARTIAL = {
    "deterministic": False,
    "rollout__partial": True,
    "rollout__batch_size": 4,
    "rollout__oversample": 28,
    "rollout__max_response_tokens": 160,
    "rollout__max_staleness": 4,
    "engine__max_running": 4,  # a busy machine may be late to interrupt: many more samples must be left
    "trainer__steps": 11,
    "checkpoint__interval": 2,
    "debug__save_rollouts": True,
    "rollout__top_p": 0.95,
    "rollout__top_k": 200,
}


def trained(job: Ended) -> list[list[Sample]]:
    """The samples of each step."""
    files = [rollout_path(job.folder.rollouts, line["step"]) for line in job.metrics]
    return [[one for group in read_groups(file) for one in group.samples] for file in files]


def test_a_killed_job_loses_nothing_and_trains_on_nothing_twice(jobs: Jobs) -> None:
    job = jobs.start("cut", **PARTIAL)
    job.until_step(5)
    job.signal(signal.SIGKILL)
    job.wait()
    ended = jobs.run("cut", "--resume", **PARTIAL)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == list(range(1, 12))
    steps = trained(ended)
    used = Counter(one.id for step in steps for one in step)
    assert set(used.values()) == {1}
    for version, step in enumerate(steps):
        for one in step:
            spans = one.versions
            assert (spans[0].start, spans[-1].end) == (0, len(one.tokens))
            assert all(first.end == second.start for first, second in pairwise(spans))
            assert one.sampling_mask is not None
            candidates = np.split(one.sampling_mask.ids, np.cumsum(one.sampling_mask.lengths)[:-1])
            assert all(token in own for token, own in zip(one.tokens, candidates, strict=True))
            assert version - 4 <= spans[0].version <= spans[-1].version <= version
    assert any(len(one.versions) > 1 for step in steps for one in step)
    difference = [line["train/train_rollout_logprob_abs_diff"] for line in ended.metrics]
    assert difference[0] < 1e-4  # a first step has no older weights
    assert any(line["rollout/off_policy_frac"] > 0 for line in ended.metrics)
