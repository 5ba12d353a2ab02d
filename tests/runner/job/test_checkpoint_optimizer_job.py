"""Checkpoints without the optimizer's state, in a whole job."""

import shutil
from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems.findings import SpecError
from tests.length_job import write_length_job
from tests.local_job import run_local

JOB = [
    "trainer.steps=3",
    "trainer.optimizer_steps=2",
    "trainer.reset_optimizer=rollout",
    "checkpoint.interval=1",
    "checkpoint.optimizer=false",
    "checkpoint.keep=all",
    "rollout.batch_size=4",
]


def test_nothing_is_lost_by_a_resume_where_the_optimizer_is_reset(tmp_path: Path) -> None:
    job, whole, parts = write_length_job(tmp_path), tmp_path / "whole", tmp_path / "parts"
    lines = run_local(job, whole, JOB)
    first = whole / "checkpoints" / "step-1"
    shutil.copytree(first, parts / "checkpoints" / "step-1")
    assert run_local(job, parts, JOB, port=2).curve == lines.curve[1:]
    weights = sum(file.stat().st_size for file in (tmp_path / "model").glob("*.safetensors"))
    saved = sum(file.stat().st_size for file in first.rglob("*.distcp"))
    assert saved < 1.5 * weights  # float32, as the model is; Adam's moments would be twice that besides


def test_a_resume_that_loses_the_optimizer_is_said_before_and_not_deterministic(tmp_path: Path) -> None:
    job = write_length_job(tmp_path)
    never = [*JOB, "trainer.reset_optimizer=never"]
    for overrides in (never, [*JOB, "algorithm.type=ppo"]):  # PPO's critic is not reset
        with pytest.raises(SpecError, match="a resumed run would continue with an empty optimizer"):
            load_checked_spec([job], overrides)
    warnings = load_checked_spec([job], [*never, "deterministic=false"]).warnings()
    assert [each.key for each in warnings if "continues with an empty optimizer" in each.message] == [
        "checkpoint.optimizer"
    ]
