"""Decoupled PPO in a whole asynchronous job: the policy before the update is estimated."""

from pathlib import Path

from tests.length_job import write_length_job
from tests.local_job import run_local

DECOUPLED = [
    "deterministic=false",
    "cluster.placement=disaggregated",
    "rollout.mode=async",
    "rollout.max_staleness=2",
    'algorithm.correction={type="tis", high=2.0}',
    "trainer.steps=6",
    "trainer.optimizer_steps=2",
    "trainer.old_log_probs=interpolated",
]


def test_the_policy_before_the_update_is_estimated_without_a_pass(tmp_path: Path) -> None:
    lines = run_local(write_length_job(tmp_path), tmp_path / "run", DECOUPLED).lines
    assert max(line["rollout/staleness/max"] for line in lines) >= 1
    assert max(line.get("perf/log_prob_time", 0.0) for line in lines) == 0
    assert max(abs(line["train/tis/mean"] - 1) for line in lines) > 1e-6, "it is not the engine's policy"
    assert max(line["train/grad_norm"] for line in lines) > 0
