"""However a job ends: one clear cause, the right exit code, and nothing of it left running."""

import signal
from pathlib import Path

import psutil
import pytest

from rlrun.specs.problems.codes import Code
from tests.integration.jobs import Ended, Jobs, Running

LINGER_SECONDS = 120.0
"""How long processes may take to disappear, on a busy machine."""


def assert_nothing_left(processes: list[psutil.Process], ended: Ended) -> None:
    _, left = psutil.wait_procs(processes, timeout=LINGER_SECONDS)
    assert not left
    state = ended.folder.read_state()
    assert not Path(state["scratch"]).exists()
    for pid in state["processes"].values():
        assert not list(Path("/dev/shm").glob(f"rlrun-*.{pid}-*"))


def at_work(running: Running) -> list[psutil.Process]:
    """Every process of a job that has done a step."""
    running.until_step(1)
    return running.children()


@pytest.mark.slow  # tests/fault/test_stops.py has SIGINT and SIGUSR1
def test_a_job_that_is_asked_to_stop_stops_cleanly(jobs: Jobs) -> None:
    running = jobs.start("stopped", trainer__steps=100_000)
    processes = at_work(running)
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 130
    assert ended.folder.read_state()["status"] == "interrupted"
    assert "Traceback" not in ended.output
    assert_nothing_left(processes, ended)


def test_a_process_that_dies_is_named_with_its_log(jobs: Jobs) -> None:
    settings = {"trainer__steps": 100_000, "fault_tolerance__engine_restarts": 0}
    settings |= {"fault_tolerance__trainer_restarts": 0}
    started = {
        "engine 0": jobs.start("killed-engine", **settings),
        "trainer 1": jobs.start("killed-rank", trainer__parallel={"fsdp": 2}, **settings),
    }
    for victim, running in started.items():
        processes = at_work(running)
        psutil.Process(running.pid(victim)).kill()
        ended = running.wait()
        assert ended.code == 3
        [failed] = [line for line in ended.output.splitlines() if line.startswith("failed:")]
        assert failed.startswith(f"failed: {victim} died: ")
        assert f"{victim.replace(' ', '-')}.log" in ended.output
        assert "Traceback" not in ended.output
        assert "ray" not in failed.lower()
        state = ended.folder.read_state()
        assert state["error_code"] == Code.PROCESS
        assert state["error"] == failed.removeprefix("failed: ")
        assert f"see rlrun explain {Code.PROCESS}" in ended.output.splitlines()
        assert_nothing_left(processes, ended)
