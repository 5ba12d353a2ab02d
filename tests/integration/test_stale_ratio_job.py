"""Asynchronous jobs with several optimizer steps weigh stale samples where `old_log_probs` is unset."""

from typing import Any

from tests.integration.jobs import Ended, Jobs
from tests.integration.test_async_job import ASYNC

STALE: dict[str, Any] = ASYNC | {
    "rollout__max_staleness": 2,
    "trainer__optimizer_steps": 2,
    "trainer__steps": 6,
    "trainer__lr": 1e-2,
}
WRITTEN = {
    "trainer__old_log_probs": "rollout",
    "trainer__share_prefixes": True,
    "trainer__global_batch_size": 16,
    "trainer__vision_tower": "none",
    "rollout__oversample": 8,
    "engine__sleep": False,
}
"""The values of unset keys of such a job."""


def replayed(jobs: Jobs, name: str, **settings: object) -> Ended:
    """Trains on the samples of the job `stale`, which repeats its steps bit for bit."""
    job = jobs.run(name, debug__mode="train", debug__rollouts="runs/stale", **STALE | settings)
    assert job.code == 0, job.output
    return job


def test_unset_keys_have_the_values_that_can_be_written_out(jobs: Jobs) -> None:
    generated = jobs.run("stale", debug__save_rollouts=True, **STALE)
    assert generated.code == 0, generated.output
    assert max(line["rollout/staleness/max"] for line in generated.metrics) >= 1
    assert "stale samples are not corrected" not in generated.output
    for line in generated.metrics:
        is_stale = line["rollout/staleness/max"] > 0
        assert line["train/approx_kl"] != 0, (
            "the second optimizer step has other weights, even without staleness"
        )
        assert not is_stale or abs(line["train/train_rollout_logprob_abs_diff"]) > 1e-3
    unset, written = replayed(jobs, "unset"), replayed(jobs, "written", **WRITTEN)
    assert unset.curve == written.curve
    assert max(abs(line["train/approx_kl"]) for line in unset.curve) > 1e-3


def test_decoupled_ppo_estimates_the_policy_before_the_update_without_a_pass(jobs: Jobs) -> None:
    correction = {"algorithm__correction": {"type": "tis", "high": 2.0}}
    job = jobs.run("decoupled", trainer__old_log_probs="interpolated", **STALE | correction)
    assert job.code == 0, job.output
    assert max(line["rollout/staleness/max"] for line in job.metrics) >= 1
    assert max(line.get("perf/log_prob_time", 0.0) for line in job.metrics) == 0
    assert max(abs(line["train/tis/mean"] - 1) for line in job.metrics) > 1e-6, (
        "it is not the engine's policy"
    )
    assert max(line["train/grad_norm"] for line in job.metrics) > 0


def test_a_ratio_to_the_trainers_log_probs_is_warned_of(jobs: Jobs) -> None:
    settings = STALE | {"trainer__steps": 1, "trainer__old_log_probs": "trainer"}
    job = jobs.run("warned", **settings)
    assert job.code == 0, job.output
    assert "stale samples are not corrected" in " ".join(job.output.split())
