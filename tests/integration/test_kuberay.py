"""A job that `rlrun submit` hands to a stand-in for KubeRay, which starts real processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlrun.runner.submission.folder import SubmissionFolder
from tests.integration.jobs import MAIN, Jobs
from tests.integration.kuberay import install_tools
from tests.waiting import wait_until

SUBMIT = """
[submit]
type = "kuberay"
image = "rlrun:1"
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
        jobs.environment |= install_tools(tmp_path / "tools")
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


@pytest.mark.slow  # expensive; tests/plugins/launchers and tests/runner/submission have the decisions
def test_a_job_whose_pod_is_taken_is_requeued_stopped_and_continued(jobs: Jobs) -> None:
    hold = jobs.folder / "hold"
    hold.touch()  # from step 6 on
    folder = SubmissionFolder(jobs.folder / "runs", "job")
    tools = jobs.folder / "tools" / "rayjobs"
    submit = ["submit", "job.toml", "--name", "job", "--set=checkpoint.interval=1000"]

    def log() -> str:
        files = [*tools.glob("*.log"), *folder.path.glob("output.txt")]
        return "\n".join(f"== {file}\n{file.read_text()[-2000:]}" for file in files)

    def until(condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, log)

    def ended() -> list[tuple[int, int]]:
        return [(attempt.code, attempt.step) for attempt in folder.read_attempts()]

    def status() -> str:
        return rlrun(jobs, "status", "job")

    assert "job is job rlrun-job-x7k2p of kuberay" in rlrun(jobs, *submit)
    metrics = folder.run.metrics
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 5, "step 5")
    assert "kuberay job rlrun-job-x7k2p: Running (RUNNING)" in status()

    (tools / "evict").touch()
    until(lambda: ended() == [(75, 5)], "the end of the first attempt")
    until(lambda: "Running (RUNNING), 1 failed, 1 attempt ended" in status(), "the second attempt")
    stopped = rlrun(jobs, "stop", "job")  # perhaps before it has read its checkpoint
    assert "job: interrupted" in stopped
    assert "continues from step 5" in stopped
    until(lambda: len(ended()) == 2, "the end of the second attempt")
    assert ended()[1] == (130, 5)
    assert "Complete (STOPPED), 1 failed, 2 attempts ended" in status()

    hold.unlink()
    rlrun(jobs, *submit, "--resume")
    until(lambda: "Complete (SUCCEEDED)" in status(), "the end of the job")
    assert ended() == [(0, 12)]
    assert folder.run.read_state()["status"] == "done"
    assert "ended with 0, step 12 is saved" in rlrun(jobs, "logs", "job", "scheduler")
    assert not folder.controls()
