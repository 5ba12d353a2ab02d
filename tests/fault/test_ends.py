"""However a job ends: one clear cause, the right exit code, and nothing of it left running."""

import signal
from pathlib import Path

import psutil
import pytest

from tests.integration.jobs import Ended, Jobs, Running

LINGER_SECONDS = 20.0
"""How long processes may take to disappear, on a busy machine."""


def assert_nothing_left(processes: list[psutil.Process], ended: Ended) -> None:
    _, left = psutil.wait_procs(processes, timeout=LINGER_SECONDS)
    assert not left
    state = ended.folder.read_state()
    assert not Path(state["scratch"]).exists()
    for pid in state["processes"].values():
        assert not list(Path("/dev/shm").glob(f"rlrun-*.{pid}-*"))


def at_work(jobs: Jobs, name: str, **settings: object) -> Running:
    """A job that has done a step and would run for long."""
    running = jobs.start(name, **({"trainer__steps": 100_000} | settings))
    running.until_step(1)
    return running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_stops_cleanly(jobs: Jobs, number: signal.Signals) -> None:
    running = at_work(jobs, f"stopped-{number}")
    processes = running.children()
    running.signal(number)
    ended = running.wait(60)
    assert ended.code == 130
    assert ended.folder.read_state()["status"] == "interrupted"
    assert "Traceback" not in ended.output
    assert_nothing_left(processes, ended)


@pytest.mark.parametrize("victim", ["trainer 0", "engine 0"])
def test_a_process_that_dies_is_named_with_its_log(jobs: Jobs, victim: str) -> None:
    name = f"killed-{victim.replace(' ', '-')}"
    settings = {"fault_tolerance__engine_restarts": 0, "fault_tolerance__trainer_restarts": 0}
    running = at_work(jobs, name, **settings)
    processes = running.children()
    psutil.Process(running.pid(victim)).kill()
    ended = running.wait(60)
    assert ended.code == 3
    lines = ended.output.splitlines()
    [failed] = [line for line in lines if line.startswith("failed:")]
    assert failed.startswith(f"failed: {victim} died: ")
    assert f"{victim.replace(' ', '-')}.log" in ended.output
    assert "Traceback" not in ended.output
    assert "ray" not in failed.lower()
    assert ended.folder.read_state()["error"] == failed.removeprefix("failed: ")
    assert_nothing_left(processes, ended)


def test_one_rank_of_two_dying_is_told_as_the_cause(jobs: Jobs) -> None:
    settings = {"trainer__parallel": {"fsdp": 2}, "fault_tolerance__trainer_restarts": 0}
    running = at_work(jobs, "killed-rank", **settings)
    processes = running.children()
    psutil.Process(running.pid("trainer 1")).kill()
    ended = running.wait(60)
    assert ended.code == 3
    assert "failed: trainer 1 died" in ended.output
    assert_nothing_left(processes, ended)
