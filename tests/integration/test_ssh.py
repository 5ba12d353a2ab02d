"""Jobs that `rlrun submit` starts on machines by way of a real SSH server."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.host.network import free_port
from rlrun.runner.submission.folder import SubmissionFolder
from tests.integration import sshd
from tests.integration.jobs import MAIN, Jobs, toml
from tests.integration.sshd import LoopbackServer, SshMachines
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sshd.why_not() is not None, reason=sshd.why_not() or "")]
needs_machines = pytest.mark.skipif(sshd.why_no_machines() is not None, reason=sshd.why_no_machines() or "")


class Submitter:
    """Runs commands of rlrun where jobs are submitted."""

    def __init__(self, jobs: Jobs, options: Sequence[str], hosts: Sequence[str]) -> None:
        self.jobs = jobs
        self._sets = {
            "submit.type": "ssh",
            "submit.hosts": [*hosts],
            "submit.options": [*options],
            "submit.python": sys.executable,
            "submit.secrets": ["ACME_KEY"],
            "submit.environment": {"OMP_NUM_THREADS": "1"},
            "cluster.nodes": len(hosts),
            "trainer.parallel.fsdp": len(hosts),
            "checkpoint.interval": 1000,
        }

    def rlrun(self, *arguments: str) -> str:
        """Returns what a command prints."""
        done = subprocess.run(
            [*self.jobs.prefix, sys.executable, "-c", MAIN, *arguments],
            cwd=self.jobs.folder,
            env=os.environ | self.jobs.environment | {"ACME_KEY": "a secret\nof two lines"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, name: str, *arguments: str, **settings: Any) -> SubmissionFolder:
        """Submits a job."""
        sets = self._sets | {key.replace("__", "."): value for key, value in settings.items()}
        words = [f"--set={key}={toml(value)}" for key, value in sets.items()]
        assert f"{name} is job" in self.rlrun("submit", "job.toml", "--name", name, *arguments, *words)
        return SubmissionFolder(self.jobs.folder / "runs", name)

    def until(self, folder: SubmissionFolder, condition: Callable[[], bool], what: str) -> None:
        """Waits for something; the job's output explains a failure."""
        output = folder.path / "output.txt"
        wait_until(condition, what, lambda: output.read_text() if output.exists() else "")

    def until_step(self, folder: SubmissionFolder, step: int) -> None:
        """Waits for a step's line."""
        self.until(folder, lambda: len(steps_of(folder)) >= step, f"step {step}")

    def until_ended(self, folder: SubmissionFolder) -> None:
        """Waits until the job's process is gone."""
        name = folder.run.name
        self.until(folder, lambda: "no longer runs" in self.rlrun("status", name), "the job's end")


def steps_of(folder: SubmissionFolder) -> list[dict[str, Any]]:
    """The metrics of each step that do not depend on the clock."""
    lines = folder.run.metrics.read_text().splitlines() if folder.run.metrics.exists() else []
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("perf/")} for line in lines]


def codes_of(folder: SubmissionFolder) -> list[int]:
    return [attempt.code for attempt in folder.read_attempts()]


KEYED = """
import os


class Keyed:
    Params = NoParams
    api_version = 1

    def __init__(self, params):
        self.params = params

    def score(self, sample):
        assert os.environ["ACME_KEY"] == "a secret" + chr(10) + "of two lines"
        return Short(self.params).score(sample)
"""


def with_keyed_reward(jobs: Jobs) -> None:
    """Adds a reward that needs the secret."""
    with (jobs.folder / "site" / "acme_rewards.py").open("a") as file:
        file.write(KEYED)
    entries = jobs.folder / "site" / "acme-1.0.dist-info" / "entry_points.txt"
    entries.write_text(
        entries.read_text().replace("[rlrun.rewards]\n", "[rlrun.rewards]\nkeyed = acme_rewards:Keyed\n")
    )
    spec = jobs.folder / "job.toml"
    spec.write_text(spec.read_text().replace('type = "short"', 'type = "keyed"'))


@pytest.fixture
def jobs(tiny_model: Path, tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path, tiny_model) as jobs:
        with_keyed_reward(jobs)
        jobs.environment["HOLD"] = str(tmp_path / "hold")
        yield jobs


def test_a_job_over_loopback_is_stopped_and_continued(jobs: Jobs) -> None:
    hold = jobs.folder / "hold"
    hold.touch()  # from step 6 on
    server = LoopbackServer(free_port("127.0.0.1"), jobs.environment)
    try:
        submitter = Submitter(jobs, server.keys.options, ["127.0.0.1"])
        folder = submitter.submit("job")
        submitter.until_step(folder, 5)
        status = submitter.rlrun("status", "job")
        assert "job: running, step 5 of 12" in status
        assert " on 127.0.0.1" in status
        assert "job: interrupted at step 5" in submitter.rlrun("stop", "job")
        submitter.until_ended(folder)
        assert [(each.code, each.step) for each in folder.read_attempts()] == [(130, 5)]

        hold.unlink()
        submitter.submit("job", "--resume")
        submitter.until_ended(folder)
        assert [(each.code, each.step) for each in folder.read_attempts()] == [(0, 12)]
        assert folder.run.read_state()["status"] == "done"
        assert "ended with 0, step 12 is saved" in submitter.rlrun("logs", "job", "scheduler")
        files = [path.read_text() for path in folder.path.iterdir() if path.is_file()]
        assert not any("of two lines" in text for text in files)
    finally:
        server.stop()


@needs_machines
def test_a_job_on_two_machines_survives_the_signal_to_one_of_them(jobs: Jobs) -> None:
    """As when a machine is shut down: the second node gets SIGTERM, and the job saves and continues."""
    machines = SshMachines(jobs.environment)
    try:
        jobs.prefix = machines.enter()
        submitter = Submitter(jobs, machines.keys.options, ["10.78.0.1", "10.78.0.2"])
        whole = submitter.submit("whole")
        submitter.until_ended(whole)
        assert codes_of(whole) == [0]

        hold = jobs.folder / "hold"
        hold.touch()
        folder = submitter.submit("job")
        submitter.until_step(folder, 5)
        machines.call("n2", "pkill", "-TERM", "-f", "rlrun node|gcs_server|raylet")
        submitter.until(folder, lambda: codes_of(folder) == [75], "the end of the first attempt")
        hold.unlink()
        submitter.until_ended(folder)
        assert [(each.code, each.step) for each in folder.read_attempts()] == [(75, 5), (0, 12)]
        assert steps_of(folder) == steps_of(whole)
    finally:
        machines.stop()
