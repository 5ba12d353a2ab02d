"""A job that trains on the best and the worst response of each group."""

from pathlib import Path

from tests.length_job import write_length_job
from tests.local_job import run_local

ONLINE_DPO = [
    "algorithm.type=online_dpo",
    "trainer.lr=3e-3",
    "trainer.optimizer_steps=2",
    "checkpoint.interval=2",
]


def test_pairs_of_the_policy_s_responses_train_and_resume_bit_for_bit(tmp_path: Path) -> None:
    job = write_length_job(tmp_path)
    whole = run_local(job, tmp_path / "whole", [*ONLINE_DPO, "trainer.steps=4"])
    run_local(job, tmp_path / "parts", [*ONLINE_DPO, "trainer.steps=2"])
    rest = run_local(job, tmp_path / "parts", [*ONLINE_DPO, "trainer.steps=4"])
    assert rest.curve == whole.curve[2:]
    assert max(line["train/preferred_frac"] for line in whole.lines) > 0
    for line in whole.lines:
        assert 0 <= line["train/advantages"] <= 1, "the share of pairs whose rewards differ"
