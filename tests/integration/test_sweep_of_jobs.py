"""Sweeps of whole jobs: side by side, killed and resumed, stopped, by Optuna, and from Python."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.records.state import is_alive
from rlrun.runner.sweeps.optuna_search import suggest
from rlrun.runner.sweeps.sweep_folder import SweepFolder
from rlrun.specs.derived.sweep_trials import Range
from tests.integration.jobs import Jobs
from tests.waiting import PATIENCE, wait_until

STEPS = 6
HELD_STEP = 5
"""The last step before the reward `short` waits for HOLD: step 6 begins with prompt 40."""
FOUR = ("--sweep", "trainer.lr=3e-3,1e-3", "--sweep", "seed=1,2")

pytestmark = pytest.mark.slow


class Sweeping:
    """A sweep that runs as a user's command."""

    def __init__(self, jobs: Jobs, name: str, *arguments: str, hold: Path, parallel: int = 2) -> None:
        settings = [f"cluster.address={jobs.cluster}", f"trainer.steps={STEPS}", "checkpoint.interval=1"]
        settings += [f"sweep.parallel={parallel}"]
        command = [sys.executable, "-m", "rlrun", "sweep", "launch", "job.toml", "--name", name]
        self.process = subprocess.Popen(
            [*command, *(f"--set={setting}" for setting in settings), *arguments],
            cwd=jobs.folder,
            env=os.environ | jobs.environment | {"HOLD": str(hold)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.folder = SweepFolder(jobs.folder / "runs" / name)

    def until(self, statuses: list[str], *, step: int = 0) -> None:
        """Waits until the trials have these statuses, and those that run have done a step."""

        def are() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            return self._is(statuses, step)

        wait_until(are, f"trials {statuses}", lambda: str(self.folder.states()))

    def _is(self, statuses: list[str], step: int) -> bool:
        if not self.folder.record.exists():
            return False
        states = self.folder.states()
        done_enough = all(state.step >= step for state in states if state.status == "running")
        return [state.status for state in states] == statuses and done_enough

    def wait(self) -> str:
        """Returns what it has printed."""
        return self.process.communicate(timeout=PATIENCE)[0]


def started(folder: SweepFolder) -> list[Any]:
    return [folder.run_of(trial).read_state().get("started") for trial in folder.trials()]


def test_a_killed_sweep_goes_on_where_it_stopped(jobs: Jobs, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    sweep = Sweeping(jobs, "lrs", *FOUR, hold=hold)
    sweep.until(["done", "done", "running", "running"])
    hold.touch()
    sweep.until(["done", "done", "running", "running"], step=HELD_STEP)
    first = started(sweep.folder)
    sweep.process.send_signal(signal.SIGKILL)
    sweep.process.wait()
    runs = [sweep.folder.run_of(trial) for trial in sweep.folder.trials()]
    wait_until(
        lambda: not any(is_alive(run.read_state()) for run in runs), "the end of a killed sweep's trials"
    )
    assert [state.status for state in sweep.folder.states()] == ["done", "done", "interrupted", "interrupted"]
    hold.unlink()

    resumed = Sweeping(jobs, "lrs", *FOUR, "--resume", hold=hold)
    output = resumed.wait()
    assert resumed.process.returncode == 0, output
    assert "4 trials, 2 at a time" in output
    assert output.count(": continues") == 2 and ": starts" not in output
    states = resumed.folder.states()
    assert [(state.status, state.step) for state in states] == [("done", STEPS)] * 4
    assert started(resumed.folder)[:2] == first[:2]
    for state in states:
        run = resumed.folder.run_of(state.trial)
        steps = [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]
        assert steps == list(range(1, STEPS + 1))
        spec = json.loads(run.lock.read_text())["spec"]
        assert {"trainer.lr": spec["trainer"]["lr"], "seed": spec["seed"]} == state.trial.values
    assert "best" in output
    assert not any(
        path.name == "superseded" for path in resumed.folder.run_of(states[0].trial).path.iterdir()
    )


def test_a_sweep_that_is_stopped_saves_its_trial_and_one_that_fails_goes_on(
    jobs: Jobs, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    rewards = ["--sweep", "rewards.0.type=broken,short,stuck", "--set", 'scoring.on_error="stop"']
    sweep = Sweeping(jobs, "rewards", *rewards, hold=hold, parallel=1)
    sweep.until(["failed", "running", "waiting"], step=HELD_STEP)
    sweep.process.send_signal(signal.SIGINT)
    output = sweep.wait()
    assert sweep.process.returncode == 130
    assert "failed at step 0" in output and f"interrupted at step {HELD_STEP}" in output
    assert [state.status for state in sweep.folder.states()] == ["failed", "interrupted", "waiting"]


def test_optuna_chooses_the_values_of_jobs(jobs: Jobs, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    settings = ["--set", 'sweep.search="optuna"', "--set", "sweep.trials=3", "--set", "trainer.steps=3"]
    keys = ["--sweep", "trainer.lr={ min = 1e-4, max = 3e-3, log = true }"]
    sweep = Sweeping(jobs, "optuna", *settings, *keys, hold=tmp_path / "hold", parallel=1)
    output = sweep.wait()
    assert sweep.process.returncode == 0, output
    states = sweep.folder.states()
    assert [(state.status, state.step) for state in states] == [("done", 3)] * 3
    for number, state in enumerate(states):
        spec = json.loads(sweep.folder.run_of(state.trial).lock.read_text())["spec"]
        assert spec["trainer"]["lr"] == state.trial.values["trainer.lr"]
        axes = {"trainer.lr": Range(1e-4, 3e-3, log=True)}
        chosen = suggest(axes, states[:number], larger=True, seed=1)
        assert chosen == state.trial.values, "the choice follows from the trials before it"


FROM_PYTHON = """
import rlrun

spec = rlrun.load("job.toml", {"trainer.steps": 2, "cluster.address": "ADDRESS"})
sweep = spec.sweep({"trainer.lr": [3e-3, 1e-3]}, name="python").wait()
print(sweep.table().reset_index().to_json(orient="records"))
print(sweep.best.name, len(sweep.best.metrics()), [run.state["status"] for run in sweep.runs])
"""


def test_a_sweep_from_python(jobs: Jobs) -> None:
    pytest.importorskip("pandas")
    assert jobs.cluster is not None
    ended = subprocess.run(
        [sys.executable, "-c", FROM_PYTHON.replace("ADDRESS", jobs.cluster)],
        cwd=jobs.folder,
        env=os.environ | jobs.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    table, summary = ended.stdout.splitlines()[-2:]
    rows = json.loads(table)
    assert [(row["trainer.lr"], row["status"], row["step"]) for row in rows] == [
        (3e-3, "done", 2), (1e-3, "done", 2)
    ]  # fmt: skip
    best = max(rows, key=lambda row: row["rollout/reward/mean"])
    assert summary == f"{best['trial']} 2 ['done', 'done']"
