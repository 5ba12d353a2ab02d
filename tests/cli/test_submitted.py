"""Commands about a submitted job. The tools of Slurm are scripts, which show what they were asked."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.runner.submission.folder import Attempt, SubmissionFolder, SubmittedJob
from tests.cli.cli_outcome import Command
from tests.job_folder import make_job_folder
from tests.runner.records.states import state

WAITING, RUNNING, GONE = "7|PENDING|Priority||N/A\n", "7|RUNNING|None|n[1-2]|N/A\n", ""
Slurm = Callable[[str], None]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Sets what squeue prints; scancel writes its arguments to `cancelled`, and empties the queue."""
    tools = tmp_path / "tools"
    tools.mkdir()
    queue = tools / "queue"
    scripts = {"squeue": f"cat {queue}", "scancel": f'echo "$@" > {tmp_path}/cancelled; : > {queue}'}
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return lambda text: queue.write_text(text) and None  # type: ignore[return-value]


@pytest.fixture
def submitted(tmp_path: Path) -> SubmissionFolder:
    """A job that was submitted and has not started."""
    folder = SubmissionFolder(tmp_path, "job")
    folder.make()
    folder.write_job(SubmittedJob(launcher="slurm", params={}, id="7"))
    return folder


def test_a_job_that_waits_is_shown_as_its_scheduler_says(
    rlrun: Command, slurm: Slurm, submitted: SubmissionFolder, tmp_path: Path
) -> None:
    slurm(WAITING)
    shown = rlrun("status", "job", "--runs-dir", tmp_path)
    assert (shown.code, shown.out) == (0, "job: not started; slurm job 7: PENDING (Priority)\n")
    shown = json.loads(rlrun("status", "job", "--runs-dir", tmp_path, "--json").out)
    assert (shown["status"], shown["scheduler"]) == ("waiting", "slurm job 7: PENDING (Priority)")
    logs = rlrun("logs", "job", "--runs-dir", tmp_path)
    assert (logs.code, logs.out) == (0, "not started; slurm job 7: PENDING (Priority)\n")


def test_a_job_that_waits_is_cancelled(
    rlrun: Command, slurm: Slurm, submitted: SubmissionFolder, tmp_path: Path
) -> None:
    slurm(WAITING)
    stopped = rlrun("stop", "job", "--runs-dir", tmp_path)
    assert (stopped.code, stopped.out) == (0, "job: cancelled before it started\n")
    assert (tmp_path / "cancelled").read_text() == "7\n"
    assert submitted.stop.exists()  # an attempt that begins meanwhile ends at once


def test_a_job_that_runs_is_asked_to_save_and_not_cancelled(
    rlrun: Command, slurm: Slurm, submitted: SubmissionFolder, tmp_path: Path
) -> None:
    slurm(RUNNING)
    stopped = rlrun("stop", "job", "--runs-dir", tmp_path, "--timeout", 0)
    assert stopped.code == 3
    assert "job was asked to stop and has not ended after 0 s; slurm job 7: RUNNING on n[1-2]" in stopped.out
    assert submitted.stop.exists()
    assert not (tmp_path / "cancelled").exists()


def test_a_run_on_the_machines_of_its_scheduler_is_shown_with_both(
    rlrun: Command, slurm: Slurm, submitted: SubmissionFolder, tmp_path: Path
) -> None:
    slurm(WAITING)
    submitted.run.path.mkdir()
    submitted.run.write_state(state(status="interrupted"))
    submitted.add_attempt(Attempt(id="7.0", code=75, step=4))
    (submitted.path / "output.txt").write_text("attempt 7.0: ended with 75\n")
    shown = rlrun("status", "job", "--runs-dir", tmp_path).out
    assert "job: interrupted" in shown
    assert "slurm job 7: PENDING (Priority), 1 attempt ended" in shown
    assert rlrun("logs", "job", "scheduler", "--runs-dir", tmp_path).out.endswith("ended with 75\n")


def test_a_job_is_not_submitted_twice(
    rlrun: Command, slurm: Slurm, submitted: SubmissionFolder, tmp_path: Path, job_spec: Path
) -> None:
    slurm(RUNNING)
    refused = rlrun("submit", job_spec, "--name", "job", "--runs-dir", tmp_path)
    assert refused.code == 2
    assert "job is already submitted: RUNNING on n[1-2]; rlrun stop job" in refused.err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "sbatch is not installed here: run this command where the scheduler's tools are"),
        (["--set", 'submit.secrets=["NO_SUCH_KEY"]'], "not set in this environment: NO_SUCH_KEY"),
    ],
)
def test_a_submission_that_cannot_be_made_says_why(
    rlrun: Command, tmp_path: Path, job_spec: Path, settings: list[str], message: str
) -> None:
    os.environ["PATH"] = "/nowhere"  # restored after each test
    refused = rlrun("submit", job_spec, "--name", "new", "--runs-dir", tmp_path, *settings)
    assert refused.code == 2
    assert message in refused.err


@pytest.fixture
def job_spec(tmp_path: Path) -> Path:
    """A spec with [submit], its model and its rows."""
    return make_job_folder(tmp_path, '[submit]\ntype = "slurm"\n[cluster]\nthreads = 2\n')


@pytest.mark.parametrize("ray", [[], ["--start-nodes", "true", "--address", "10.0.0.1:6379"]])
def test_an_attempt_starts_nodes_or_joins_a_cluster(
    rlrun: Command, submitted: SubmissionFolder, ray: list[str]
) -> None:
    refused = rlrun("attempt", submitted.path, "--nodes", 1, "--id", "7.0", *ray)
    assert refused.code == 2
    assert "takes either --start-nodes or --address" in refused.err


def test_a_machine_without_an_attempt_is_released(rlrun: Command, submitted: SubmissionFolder) -> None:
    assert rlrun("release", submitted.path, "--seconds", 0).code == 0
    submitted.make_control()
    assert rlrun("release", submitted.path, "--seconds", 0).code == 3
