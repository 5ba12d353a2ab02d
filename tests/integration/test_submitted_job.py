"""Attempts of a submitted job on this host: the same programs that a scheduler starts on its machines."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.submission.folder import SubmissionFolder
from rlrun.runner.submission.prepare import submitted_spec
from tests.integration.jobs import MAIN, Jobs, toml
from tests.waiting import PATIENCE, wait_for_ends, wait_until

SETTINGS: dict[str, Any] = {"trainer.steps": 12, "checkpoint.interval": 1000, "submit.type": "slurm"}
NODE = (
    shlex.join([sys.executable, "-c", MAIN, "node"]) + ' "$RLRUN_CONTROL" --rank=0 --head=127.0.0.1 --cpus=2'
)


def start_attempt(jobs: Jobs, folder: SubmissionFolder, again: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", MAIN, "attempt", str(folder.path), "--nodes=1", "--id=7.0"]
    with (folder.path / "output.txt").open("ab") as output:
        return subprocess.Popen(
            [*command, f"--start-nodes={NODE}", f"--again={again}"],
            cwd=jobs.folder,
            env=os.environ | jobs.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@pytest.mark.slow  # expensive; tests/runner/submission has what attempts decide
def test_an_attempt_that_loses_its_machines_is_followed_by_one_that_finishes(
    tiny_model: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    with Jobs(tmp_path, tiny_model) as jobs:
        hold = tmp_path / "hold"
        hold.touch()  # from step 6 on
        jobs.environment["HOLD"] = str(hold)
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        loaded = load_checked_spec(
            [tmp_path / "job.toml"],
            [f"{key}={toml(value)}" for key, value in SETTINGS.items()] + [f"runs_dir={toml(str(tmp_path))}"],
        )
        folder = SubmissionFolder(tmp_path, "job")
        folder.make()
        folder.spec.write_text(submitted_spec(loaded))
        again = tmp_path / "again"

        def output() -> str:
            return (folder.path / "output.txt").read_text()

        attempt = start_attempt(jobs, folder, f"touch {again}; exit 1")
        metrics = folder.run.metrics
        wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 5, "step 5", output)
        processes = psutil.Process(attempt.pid).children(recursive=True)
        [node] = [each for each in processes if "node" in each.cmdline() and "--rank=0" in each.cmdline()]
        ray = [each for each in node.children(recursive=True) if each.name() in ("gcs_server", "raylet")]
        assert len(ray) == 2
        for process in [node, *ray]:
            process.send_signal(signal.SIGTERM)  # as Slurm does to a whole step
        assert attempt.wait(PATIENCE) == 75, output()
        assert again.exists()
        assert "got SIGTERM" in output()
        assert "stopping for the scheduler (SIGUSR1)" in output()
        [first] = folder.read_attempts()
        assert (first.code, first.step) == (75, 5)
        wait_for_ends(processes)
        assert not list(folder.path.glob("attempt-*"))

        hold.unlink()
        assert start_attempt(jobs, folder, "false").wait(PATIENCE) == 0, output()
        assert [(each.code, each.step) for each in folder.read_attempts()] == [(75, 5), (0, 12)]
        assert folder.run.read_state()["status"] == "done"
