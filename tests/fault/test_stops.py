"""A job that is asked to stop saves its last finished step; resumed, it is the job that was not stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fault.conftest import STEPS
from tests.fault.ids import trained_ids
from tests.fault.moments import Fault, main_with
from tests.fault.test_ends import assert_nothing_left
from tests.integration.jobs import MAIN, Ended, Jobs, Running

HELD = 6
"""The step whose rewards wait as long as the file HOLD exists."""


@pytest.fixture
def hold(jobs: Jobs) -> Path:
    """A file that keeps a step's rollout from ending."""
    path = jobs.folder / "hold"
    path.touch()
    jobs.environment["HOLD"] = str(path)
    return path


def saved_steps(ended: Ended) -> list[str]:
    return sorted(path.name for path in ended.folder.checkpoints.glob("step-*"))


def is_at(running: Running, step: int) -> bool:
    state = running.folder.read_state()
    return bool(state["status"] == "running" and state["step"] == step)


def rlrun(jobs: Jobs, *arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-c", MAIN, *arguments]
    environment = os.environ | jobs.environment
    ended = subprocess.run(
        command, cwd=jobs.folder, env=environment, capture_output=True, text=True, check=True
    )
    return ended.stdout


def assert_status_says_where_processes_are(jobs: Jobs, name: str) -> None:
    """Asking changes nothing of what is learnt, which the test goes on to show."""
    state = json.loads(rlrun(jobs, "status", name, "--processes", "--json"))
    found = {process["log"]: process["where"] for process in state["on_this_host"]}
    assert {"engine-0", "reward-0", "trainer-0"} <= set(found)
    assert any(where.startswith("it is in score (acme_rewards.py:") for where in found.values())
    assert all(where.startswith("it is in ") for where in found.values())


def test_a_job_that_is_stopped_again_and_again_is_the_job_that_was_not(
    jobs: Jobs, reference: Ended, hold: Path, ray_cluster: str
) -> None:
    settings = {"trainer__steps": STEPS, "checkpoint__interval": 100}

    def resume(main: str = MAIN) -> Ended:
        joined = {"cluster__address": ray_cluster}
        return jobs.run("stopped", "--resume-if-exists", main=main, **settings, **joined)

    running = jobs.start("stopped", **settings)
    running.until_step(HELD - 1)
    processes = running.children()
    assert_status_says_where_processes_are(jobs, "stopped")
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does: every process of the group has it
    ended = running.wait()
    assert ended.code == 130
    assert "cancelling step 6 and saving step 5 (at most 60 s; once more to stop at once)" in ended.output
    assert ended.output.endswith("continues from step 5 (checkpoints/step-5)\n")
    assert saved_steps(ended) == ["step-5"]
    assert_nothing_left(processes, ended)

    hold.unlink()
    by_scheduler = Fault("driver", "training", 2, number=signal.SIGUSR1)
    ended = resume(main_with([by_scheduler]))
    assert ended.code == 75
    assert "stopping for the scheduler (SIGUSR1): finishing step 7 and saving" in ended.output
    assert ended.folder.read_state()["status"] == "interrupted"
    assert saved_steps(ended) == ["step-5", "step-7"]

    ended = resume()
    assert ended.code == 0, ended.output
    assert ended.curve == reference.curve
    assert trained_ids(ended) == trained_ids(reference)


@pytest.mark.slow
def test_other_ways_of_stopping_a_job_change_nothing_either(jobs: Jobs, reference: Ended, hold: Path) -> None:
    settings = {"trainer__steps": STEPS, "checkpoint__interval": 100}
    running = jobs.start("stopped-otherwise", **settings)
    running.until_step(HELD - 1)
    assert "continues from step 5" in rlrun(jobs, "stop", "stopped-otherwise")
    assert saved_steps(running.wait()) == ["step-5"]

    running = jobs.start("stopped-otherwise", "--resume", **settings)
    running.until(lambda: is_at(running, HELD - 1), "the checkpoint is loaded")
    assert "continues from step 5" in rlrun(jobs, "stop", "stopped-otherwise")
    assert saved_steps(running.wait()) == ["step-5"]

    hold.unlink()
    main = main_with([Fault("driver", "training", 2, number=signal.SIGHUP)])
    ended = jobs.run("stopped-otherwise", "--resume", main=main, **settings)
    assert ended.code == 130
    assert "finishing step 7 and saving" in ended.output
    assert saved_steps(ended) == ["step-5", "step-7"]
    assert jobs.run("stopped-otherwise", "--resume", **settings).curve == reference.curve


CAUSES = {"raylet": "Ray's raylet", "gcs_server": "Ray's GCS"}


def kill_ray(jobs: Jobs, run: str, name: str, **settings: Any) -> None:
    """Kills a process of the job's Ray in its sixth step: the job ends with the fifth saved."""
    running = jobs.start(run, **settings)
    running.until_step(HELD - 1)
    processes = running.children()
    [victim] = [process for process in processes if process.name() == name]
    victim.kill()
    ended = running.wait()
    assert ended.code == 69, ended.output
    assert f"failed: {CAUSES[name]} (process {victim.pid}) died: SIGKILL" in ended.output
    assert "starting" not in ended.output.partition("step 1/")[2]  # nothing is restarted in vain
    assert ended.folder.read_state()["status"] == "failed"
    assert saved_steps(ended) == ["step-5"]
    assert_nothing_left(processes, ended)
    print(f"{name}: ended after {ended.seconds:.1f} s")


@pytest.mark.usefixtures("hold")
def test_when_ray_dies_the_last_step_is_saved(jobs: Jobs) -> None:
    kill_ray(jobs, "lost-raylet", "raylet", trainer__steps=STEPS, checkpoint__interval=100)


@pytest.mark.slow  # the test above ends in the same way, and the first one resumes what a stop saved
@pytest.mark.parametrize("name", CAUSES)
def test_a_job_whose_ray_died_goes_on_elsewhere(
    jobs: Jobs, reference: Ended, hold: Path, ray_cluster: str, name: str
) -> None:
    settings = {"trainer__steps": STEPS, "checkpoint__interval": 100}
    run = name.replace("_", "-")
    kill_ray(jobs, run, name, **settings)
    hold.unlink()
    resumed = jobs.run(run, "--resume", cluster__address=ray_cluster, **settings)
    assert resumed.curve == reference.curve


@pytest.mark.slow
def test_a_job_resumes_after_its_driver_was_killed_or_stopped_at_any_moment(
    jobs: Jobs, reference: Ended
) -> None:
    jobs.environment.pop("HOLD", None)
    dataset = {"name": "held_out", "path": str(jobs.folder / "rows.jsonl"), "samples_per_prompt": 1}
    settings = {"trainer__steps": STEPS, "eval": {"interval": 4, "datasets": [dataset]}}
    faults = {
        "start": (Fault("driver", "starting ranks", 1), []),
        "evaluation": (Fault("driver", "evaluation", 3), ["step-4"]),  # after step 8
        "weight sync": (Fault("driver", "weight sync", 4), ["step-4"]),
        "evaluation, stopped": (
            Fault("driver", "evaluation", 1, number=signal.SIGTERM),
            ["step-4", "step-8"],
        ),
    }
    resume: list[str] = []
    for fault, saved in faults.values():
        ended = jobs.start("killed", *resume, main=main_with([fault]), **settings).wait()
        assert ended.code == (-signal.SIGKILL if fault.number == signal.SIGKILL else 130), ended.output
        assert saved_steps(ended) == saved
        resume = ["--resume"]
    assert "postponing the evaluation and saving step 8" in ended.output
    ended = jobs.run("killed", "--resume", **settings)
    assert ended.code == 0, ended.output
    lines = {line["step"]: line for line in ended.curve}
    assert [step for step, line in lines.items() if "eval/held_out/reward" in line] == [0, 4, 8, 12]
    trained = [{k: v for k, v in lines[step].items() if "eval/" not in k} for step in range(1, STEPS + 1)]
    assert trained == reference.curve
    assert trained_ids(ended) == trained_ids(reference)
