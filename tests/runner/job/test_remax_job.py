"""A job in which a prompt has one sample, and the greedy response is what it is compared with."""

from pathlib import Path

from tests.length_job import write_length_job
from tests.local_job import run_local

REMAX = ["algorithm.type=remax", "rollout.samples_per_prompt=1", "checkpoint.interval=3"]


def test_single_samples_train_and_resume_bit_for_bit(tmp_path: Path) -> None:
    job = write_length_job(tmp_path)
    whole = run_local(job, tmp_path / "whole", [*REMAX, "trainer.steps=6"])
    run_local(job, tmp_path / "parts", [*REMAX, "trainer.steps=3"])
    rest = run_local(job, tmp_path / "parts", [*REMAX, "trainer.steps=6"])
    assert rest.curve == whole.curve[3:]
    for line in whole.lines:
        difference = line["rollout/reward/mean"] - line["rollout/greedy_reward"]
        assert abs(line["train/advantages"] - difference) < 1e-5
    assert max(line["train/grad_norm"] for line in whole.lines) > 0
