"""A job that `rlrun submit` hands to a stand-in for SkyPilot, which starts real processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlrun.runner.submission.folder import SubmissionFolder
from tests.integration.jobs import MAIN, Jobs
from tests.integration.skypilot import install_tool
from tests.waiting import wait_until

SUBMIT = """
[submit]
type = "skypilot"
python = "{python}"
mounts = {{"{folder}" = "team"}}
"""


@pytest.fixture
def jobs(tiny_model: Path, tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path, tiny_model) as jobs:
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([jobs.environment["PYTHONPATH"], root])
        with (tmp_path / "job.toml").open("a") as spec:
            spec.write(SUBMIT.format(python=sys.executable, folder=tmp_path))
        jobs.environment |= install_tool(tmp_path / "tools")
        jobs.environment |= {"HOLD": str(tmp_path / "hold"), "PYTHONPATH": path}
        yield jobs


def rlrun(jobs: Jobs, *arguments: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        cwd=jobs.folder,
        env=os.environ | jobs.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # expensive; tests/plugins/launchers has the decisions
def test_a_job_on_two_machines_that_vanish_continues_on_others(jobs: Jobs) -> None:
    hold = jobs.folder / "hold"
    hold.touch()  # from step 6 on
    folder = SubmissionFolder(jobs.folder / "runs", "job")
    tools = jobs.folder / "tools" / "skyjobs"
    settings = ["--set=checkpoint.interval=2", "--set=cluster.nodes=2", "--set=trainer.parallel.fsdp=2"]

    def log() -> str:
        files = [*tools.glob("*.log"), *folder.path.glob("output.txt")]
        return "\n".join(f"== {file}\n{file.read_text()[-2000:]}" for file in files)

    def until(condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, log)

    assert "job is job 1 of skypilot" in rlrun(jobs, "submit", "job.toml", "--name", "job", *settings)
    metrics = folder.run.metrics
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 5, "step 5")
    assert "skypilot job 1: RUNNING" in rlrun(jobs, "status", "job")
    (tools / "evict").touch()
    until(lambda: "RUNNING, 1 recovery" in rlrun(jobs, "status", "job"), "other machines")
    until(lambda: "resumed from the checkpoint of step 4" in log(), "the second attempt")
    hold.unlink()
    until(lambda: "SUCCEEDED, 1 recovery" in rlrun(jobs, "status", "job"), "the end of the job")
    assert [(attempt.code, attempt.step) for attempt in folder.read_attempts()] == [(0, 12)]
    assert folder.run.read_state()["status"] == "done"
    assert "ended with 0, step 12 is saved" in rlrun(jobs, "logs", "job", "scheduler")
