"""Parts of a job alone: what they make is what the whole job makes."""

from typing import Any

import numpy as np
import pytest

from rlrun.plugins.types import Sample
from rlrun.runner.records.saved_rollouts import read_groups, rollout_path
from tests.integration.jobs import Ended, Jobs

SETTINGS = {
    "trainer__steps": 3,
    "checkpoint__interval": 1,
    "checkpoint__keep": 3,
    "rollout__top_p": 0.9,
    "rollout__top_k": 50,
}


@pytest.fixture(scope="module")
def made(jobs: Jobs) -> dict[str, Ended]:
    """A job that keeps every sample and one that only makes samples; then those that train on them."""
    two = SETTINGS | {"trainer__steps": 2}
    started = {
        "whole": jobs.start("whole", **SETTINGS, debug__save_rollouts=True),
        "rolled": jobs.start("rolled", **two, debug__mode="rollout"),
    }
    ended = {name: running.wait() for name, running in started.items()}
    again = {"debug__rollouts": "runs/whole", "debug__step": 3}
    started = {
        "again": jobs.start("again", **SETTINGS, debug__mode="train", **again),
        "alone": jobs.start("alone", **two, debug__mode="train", debug__rollouts="runs/rolled"),
    }
    ended |= {name: running.wait() for name, running in started.items()}
    for job in ended.values():
        assert job.code == 0, job.output
    return ended


def read_samples(job: Ended, step: int) -> list[Sample]:
    groups = read_groups(rollout_path(job.folder.rollouts, step))
    return [one for group in groups for one in group.samples]


def samples(job: Ended, step: int) -> list[tuple[Any, ...]]:
    return [
        (one.id, one.tokens.tolist(), one.log_probs.tolist(), one.reward, one.versions)
        for one in read_samples(job, step)
    ]


def trained(line: dict[str, Any]) -> dict[str, Any]:
    """What the trainer says, without what depends on the clock."""
    return {key: value for key, value in line.items() if key.startswith("train/") or key == "step"}


def test_one_step_again_gives_the_same_metrics_to_the_bit(made: dict[str, Ended]) -> None:
    [line], before = made["again"].curve, made["whole"].curve[2]
    assert line == {key: before[key] for key in line}
    assert set(before) - set(line) == {
        "rollout/failed",
        "rollout/lost_frac",
        "rollout/prefix_cache_hit_rate",
    }  # the engines'


def test_the_trainer_gives_truncated_samples_the_engines_log_probs(made: dict[str, Ended]) -> None:
    lengths = []
    for line in made["whole"].curve:
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        for one in read_samples(made["whole"], line["step"]):
            assert one.sampling_mask is not None
            lengths += one.sampling_mask.lengths.tolist()
    assert max(lengths) == 50  # of a vocabulary of 320, whose whole softmax would differ by some nats
    assert min(lengths) >= 1


def test_rollouts_alone_and_training_on_them(made: dict[str, Ended]) -> None:
    whole, rolled, alone = made["whole"], made["rolled"], made["alone"]
    assert samples(rolled, 1) == samples(whole, 1)
    assert {span.version for one in samples(rolled, 2) for span in one[-1]} == {0}  # nothing was trained
    assert rolled.curve[0]["rollout/reward/mean"] == whole.curve[0]["rollout/reward/mean"]
    assert not any(key.startswith("train/") for key in rolled.curve[1])
    assert trained(alone.curve[0]) == trained(whole.curve[0])
    assert alone.curve[1]["rollout/staleness/max"] == 1
    assert np.isfinite(alone.curve[1]["train/loss"])


@pytest.mark.usefixtures("made")
def test_samples_that_are_not_there_are_told_before_anything_starts(jobs: Jobs) -> None:
    ended = jobs.run("short", trainer__steps=9, debug__mode="train", debug__rollouts="runs/whole")
    assert ended.code == 3
    assert "runs/whole has no samples of step 4" in ended.output.replace("\n", " ")
