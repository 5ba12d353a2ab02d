"""A job whose executions are carried out by workers that are killed and started again, and so is the job."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.host.network import free_port
from rlrun.runner.records.packed_lines import read_records
from rlrun.runner.records.saved_rollouts import rollout_path
from tests.integration.jobs import Ended, Jobs

EXAMPLE = Path(__file__).parents[2] / "examples/workers/worker.py"
HANGING = """
import time, worker


def execute(task):
    worker.post(f"{task['base_url']}/chat/completions", {"messages": task["messages"]}, task["api_key"])
    time.sleep(6000)


worker.execute, worker.NAME = execute, "hanging"
worker.main(URL)
"""
"""A worker that never gives a result back."""
STEPS = 4


class Pool:
    """The workers of a job, at a port of this host."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "WORKERS_KEY": "a-key", "PYTHONPATH": str(EXAMPLE.parent)}
        process = subprocess.Popen([sys.executable, *command], env=environment)
        self.processes.append(process)
        return process

    def counts(self) -> dict[str, Any]:
        """Returns what the job says of its tasks; {} while it does not offer any."""
        request = urllib.request.Request(f"{self.url}/tasks", headers={"Authorization": "Bearer a-key"})
        try:
            with urllib.request.urlopen(request) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(tmp_path)
    yield pool
    pool.close()


def test_workers_and_the_job_are_killed_and_no_sample_is_lost_or_trained_twice(
    jobs: Jobs, workers: Pool
) -> None:
    jobs.environment["WORKERS_KEY"] = "a-key"
    agent = {"type": "workers", "port": workers.port, "key": "${env:WORKERS_KEY}", "lease_timeout": 2.0}
    settings: dict[str, object] = {
        "deterministic": False,
        "rollout__function": {"type": "agent", "agent": agent},
        "rollout__batch_size": 3,
        "rollout__samples_per_prompt": 2,
        "rewards": [{"type": "noted"}],
        "trainer__steps": STEPS,
        "checkpoint__interval": 1,
        "checkpoint__keep": STEPS,
        "debug__save_rollouts": True,
    }
    hanging = workers.start("-c", HANGING.replace("URL", repr(workers.url)))
    job = jobs.start("pulled", **settings)
    job.until(lambda: "hanging" in workers.counts().get("leased", {}), "a lease")
    hanging.kill()
    job.until(lambda: workers.counts().get("lost", 0) == 1, "the end of the lease")
    first = workers.start(str(EXAMPLE), workers.url)
    job.until_step(2)
    job.signal(signal.SIGKILL)
    assert job.wait().code == -signal.SIGKILL
    first.kill()
    workers.start(str(EXAMPLE), workers.url)  # waits until the job offers tasks again
    ended = jobs.run("pulled", "--resume", **settings)
    assert ended.code == 0, ended.output
    check_samples(ended)


def check_samples(ended: Ended) -> None:
    records = [
        record
        for step in range(1, STEPS + 1)
        for record in read_records(rollout_path(ended.folder.rollouts, step))
    ]
    ids = [record["id"] for record in records]
    assert ids == [f"{prompt}-{number}" for prompt in range(3 * STEPS) for number in range(2)]
    assert {record["versions"][0][0] for record in records} == {*range(STEPS)}
    assert any(record["info"].get("retries") for record in records), "the lost one ran again"
    for line in ended.metrics:
        assert line["rollout/failed"] == 0
        assert line["train/train_rollout_logprob_abs_diff_max"] < 1e-4
    place = ["--runs-dir", str(ended.folder.path.parent)]
    audit = subprocess.run(
        [sys.executable, "-m", "rlrun", "audit", "pulled", *place], capture_output=True, check=False
    )
    assert audit.returncode == 0, audit.stdout.decode()


def test_a_deterministic_job_has_no_workers(jobs: Jobs) -> None:
    function = {"type": "agent", "agent": {"type": "workers"}}
    ended = jobs.run("refused", rollout__function=function)
    assert ended.code == 2
    assert "all executions of a batch would need a worker at once" in " ".join(ended.output.split())
