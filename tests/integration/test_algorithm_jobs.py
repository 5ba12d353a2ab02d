"""Algorithms in whole jobs: what goes beyond tests/plugins/algorithms/test_trained_algorithms.py."""

import json
import signal

import numpy as np
import pytest

from rlrun.plugins.registry import build
from rlrun.runner.records.saved_rollouts import read_groups, rollout_path
from tests.integration.jobs import Jobs
from tests.integration.test_stale_ratio_job import STALE
from tests.tiny_models import make_tiny_model

ENTROPY = {
    "algorithm__type": "dr_grpo",
    "algorithm__top_entropy": 0.5,
    "algorithm__entropy_coef": 0.01,
    "algorithm__adaptive_entropy": {"target": 4.4, "step": 0.02, "high": 0.1},
}


@pytest.mark.slow
def test_terms_of_the_entropy_act_and_their_weight_continues_after_a_kill(jobs: Jobs) -> None:
    """Above the target there is no bonus; below it, the weight rises."""
    settings = ENTROPY | {"trainer__steps": 6, "trainer__lr": 1e-2, "checkpoint__interval": 2}
    hold = jobs.folder / "hold"
    hold.touch()
    whole = jobs.start("whole", **settings)
    jobs.environment["HOLD"] = str(hold)
    killed = jobs.start("killed", **settings)
    killed.until_step(5)  # the reward holds the job in its sixth step; the last checkpoint is of the fourth
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    hold.unlink()
    ended = whole.wait()
    resumed = jobs.run("killed", "--resume", **settings)
    assert ended.code == resumed.code == 0, ended.output + resumed.output
    assert resumed.curve == ended.curve
    weights = [line["train/entropy_coef"] for line in ended.metrics]
    assert 0.0 in weights and max(weights) > 0.01, weights
    assert all(0 < line["train/top_entropy_frac"] < 0.6 for line in ended.metrics)


@pytest.mark.slow  # tests/runner/job has such a job in one process, and its resumption
def test_gkd_approaches_the_teacher_and_goes_on_after_a_kill(jobs: Jobs) -> None:
    teacher = {"path": str(make_tiny_model(jobs.folder / "teacher", "llama", seed=3))}
    settings = {"algorithm__type": "gkd", "teacher": teacher, "trainer__lr": 3e-3}
    asynchronous = jobs.start("gkd-async", **STALE | settings)
    settings |= {"trainer__steps": 6, "checkpoint__interval": 2}
    hold = jobs.folder / "hold"
    hold.touch()
    whole = jobs.start("gkd-whole", **settings)
    jobs.environment["HOLD"] = str(hold)
    killed = jobs.start("gkd-killed", **settings)
    killed.until_step(5)
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    hold.unlink()
    stale, ended = asynchronous.wait(), whole.wait()
    resumed = jobs.run("gkd-killed", "--resume", **settings)
    assert stale.code == ended.code == resumed.code == 0, stale.output + ended.output + resumed.output
    assert resumed.curve == ended.curve
    assert max(line["rollout/staleness/max"] for line in stale.metrics) >= 1
    for job in (stale, ended):
        divergences = [line["train/divergence"] for line in job.metrics]
        assert 0 < divergences[-1] < 0.9 * divergences[0], divergences


@pytest.mark.slow  # test_trained_algorithms.py trains with it in one process
def test_kto_trains_on_labelled_responses(jobs: Jobs) -> None:
    """Two responses to each prompt, the shorter of which is good, on two micro-batches per step."""
    rows = [
        {"prompt": f"say {n // 2}", "response": f"no {n} no" if n % 2 else "ok", "label": n % 2 == 0}
        for n in range(64)
    ]
    (jobs.folder / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head, _, rest = (jobs.folder / "job.toml").read_text().partition("[rollout]")
    trainer = rest[rest.index("[trainer]") :].replace('[engine]\ndtype = "float32"\nmax_running = 64\n', "")
    head = head.replace('path = "rows.jsonl"', 'path = "labelled.jsonl"\nresponse_key = "response"')
    lengths = "[rollout]\nmax_prompt_tokens = 64\nmax_response_tokens = 16\n"
    (jobs.folder / "kto.toml").write_text(head + lengths + trainer)
    settings = {"trainer__global_batch_size": 8, "trainer__max_tokens_per_rank": 160}
    job = jobs.run("kto", spec="kto.toml", algorithm__type="kto", **settings)
    assert job.code == 0, job.output
    assert job.metrics[0]["train/kto_loss"] == pytest.approx(0.5), "the policy begins as the reference"
    assert job.metrics[-1]["train/kto_loss"] < 0.4
    assert max(line["train/kto_divergence"] for line in job.metrics) > 0


@pytest.mark.slow  # the package's own tests have its advantages, and test_trained_algorithms.py a job
def test_gigpo_discounts_the_reward_for_earlier_turns(jobs: Jobs) -> None:
    """All samples of a prompt see the same tokens before their first answer, and before their second."""
    settings = {
        "rollout__function": {"type": "two_turns"},
        "rollout__max_response_tokens": 32,
        "rewards": [{"type": "random"}],
    }
    job = jobs.run("turns", algorithm__type="gigpo", debug__save_rollouts=True, trainer__steps=3, **settings)
    assert job.code == 0, job.output
    assert min(line["train/grad_norm"] for line in job.metrics) > 0
    algorithm = build("algorithms", "gigpo", {"gamma": 0.5, "normalize_std": False})
    scores = []
    for group in read_groups(rollout_path(job.folder.rollouts, 1)):
        for sample, own in zip(group.samples, algorithm.of_turns(group), strict=True):
            first, second = own[sample.made][0], own[sample.made][-1]
            assert not own[~sample.made].any() and not sample.made.all()
            assert first == pytest.approx(0.5 * second)
            scores.append(second)
    assert np.any(scores)
