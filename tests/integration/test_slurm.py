"""A job that `rlrun submit` hands to a real Slurm survives what Slurm does to it, bit for bit."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.submission.folder import SubmissionFolder
from tests.integration.jobs import MAIN, Jobs, toml
from tests.integration.slurm import SlurmCluster, why_not
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]

STEPS = 40
SETTINGS: dict[str, Any] = {
    "trainer__steps": STEPS,
    "trainer__parallel__fsdp": 2,
    "cluster__nodes": 2,
    "checkpoint__interval": 1000,
    "checkpoint__stop_timeout": 20.0,
}
"""Nothing is saved before the end unless the job is asked to."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(grace=30)
    try:
        yield cluster
        print(cluster.log())
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def jobs(cluster: SlurmCluster, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with Jobs(tmp_path_factory.mktemp("jobs"), tiny_model, prefix=cluster.enter()) as jobs:
        jobs.environment |= cluster.environment | {"HOLD": str(jobs.folder / "hold")}
        yield jobs


def rlrun(jobs: Jobs, *arguments: str, **settings: object) -> str:
    """What a command prints that runs where jobs are submitted."""
    sets = [f"--set={key.replace('__', '.')}={toml(value)}" for key, value in settings.items()]
    done = subprocess.run(
        [*jobs.prefix, sys.executable, "-c", MAIN, *arguments, *sets],
        cwd=jobs.folder,
        env=os.environ | jobs.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def submission(jobs: Jobs, name: str) -> SubmissionFolder:
    return SubmissionFolder(jobs.folder / "runs", name)


def output(jobs: Jobs, name: str) -> str:
    path = submission(jobs, name).path / "output.txt"
    return path.read_text() if path.exists() else ""


def until(jobs: Jobs, cluster: SlurmCluster, name: str, condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, lambda: f"{cluster.queue()}\n{output(jobs, name)}")


def steps_of(jobs: Jobs, name: str) -> list[dict[str, Any]]:
    """The metrics of each step that do not depend on the clock."""
    metrics = submission(jobs, name).run.metrics
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("perf/")} for line in lines]


def minutes_so_far(cluster: SlurmCluster, id: str) -> int:
    """How long the attempt has run, in whole minutes."""
    [run_time] = re.findall(r"RunTime=(\d+):(\d+):\d+", cluster.call("ctl", "scontrol", "show", "job", id))
    return 60 * int(run_time[0]) + int(run_time[1])


def is_done(jobs: Jobs, cluster: SlurmCluster, name: str) -> Callable[[], bool]:
    run = submission(jobs, name).run

    def done() -> bool:
        if cluster.queue():
            return False
        state = run.read_state()
        assert state.get("status") == "done", (state, output(jobs, name))
        return True

    return done


def test_a_job_that_is_preempted_and_cut_by_its_time_limit_is_the_job_that_was_not(
    cluster: SlurmCluster, jobs: Jobs
) -> None:
    printed = rlrun(jobs, "submit", "job.toml", "--name", "whole", **SETTINGS, submit__partition="low")
    assert "whole is job" in printed
    until(jobs, cluster, "whole", is_done(jobs, cluster, "whole"), "the undisturbed job")
    undisturbed = steps_of(jobs, "whole")
    assert [step["step"] for step in undisturbed] == list(range(1, STEPS + 1))

    limited = {"submit__partition": "low", "submit__hours": 0.8}
    rlrun(jobs, "submit", "job.toml", "--name", "cut", **SETTINGS, **limited)
    until(jobs, cluster, "cut", lambda: len(steps_of(jobs, "cut")) >= 8, "step 8")
    hold = jobs.folder / "hold"  # no reward is computed from now on
    other = ["--partition=high", "--nodes=2", "--exclusive", "--time=1", "--wrap=sleep 2"]
    cluster.call("ctl", "sbatch", f"--output={jobs.folder}/other.txt", *other)
    attempts = submission(jobs, "cut")
    until(
        jobs, cluster, "cut", lambda: len(attempts.read_attempts()) == 1, "the end of the preempted attempt"
    )
    [preempted] = attempts.read_attempts()
    assert preempted.code == 75
    assert preempted.step >= 8
    assert "got SIGTERM" in output(jobs, "cut")

    until(jobs, cluster, "cut", lambda: len(steps_of(jobs, "cut")) > preempted.step, "the second attempt")
    hold.touch()
    id = attempts.read_job().id
    cluster.call("ctl", "scontrol", "update", f"JobId={id}", f"TimeLimit={minutes_so_far(cluster, id) + 3}")
    until(jobs, cluster, "cut", lambda: len(attempts.read_attempts()) == 2, "the time limit")
    cluster.call("ctl", "scontrol", "update", f"JobId={id}", "TimeLimit=50")
    assert attempts.read_attempts()[1].code == 75
    hold.unlink()
    until(jobs, cluster, "cut", is_done(jobs, cluster, "cut"), "the job's end")
    codes = [attempt.code for attempt in attempts.read_attempts()]
    print("attempts:", attempts.read_attempts())
    assert codes == [75, 75, 0]
    assert steps_of(jobs, "cut") == undisturbed
