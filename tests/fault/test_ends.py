"""However a job ends: one clear cause, the right exit code, and nothing of it left running."""

import signal
import socket
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
        assert not list(Path("/dev/shm").glob(f"rlrun-*-{pid}-*"))


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
    running = at_work(jobs, f"killed-{victim.replace(' ', '-')}")
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
    running = at_work(jobs, "killed-rank", trainer__parallel={"fsdp": 2})
    processes = running.children()
    psutil.Process(running.pid("trainer 1")).kill()
    ended = running.wait(60)
    assert ended.code == 3
    assert "failed: trainer 1 died" in ended.output
    assert_nothing_left(processes, ended)


def test_a_reward_that_raises_ends_the_job_by_name(jobs: Jobs) -> None:
    ended = jobs.run("broken", rewards=[{"type": "broken"}])
    assert ended.code == 3
    assert "reward 'broken'" in ended.output
    assert "no score for" in ended.output


def test_a_reward_that_hangs_is_ended(jobs: Jobs) -> None:
    settings = {"timeout": 0.3, "on_error": "drop"}
    ended = jobs.run(
        "stuck", rewards=[{"type": "stuck"}], scoring=settings, rollout__batch_size=1, rollout__max_attempts=1
    )
    assert ended.code == 3
    assert "the rollout starved: of 1 groups tried 0 were kept" in ended.output
    assert "4 samples failed" in ended.output or "1 by generation (failed)" in ended.output


def test_a_port_in_use_is_named(jobs: Jobs) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = jobs.run("port", engine__port=port)
    assert ended.code == 3
    assert f"engine 0 failed: ValueError: the engine cannot listen on port {port}" in ended.output


def test_more_gpus_than_there_are(jobs: Jobs) -> None:
    ended = jobs.run(
        "gpus", cluster__gpus_per_node=64, trainer__parallel={"fsdp": 64}, rollout__batch_size=16
    )
    assert ended.code == 3
    assert "the spec asks for 64 GPUs" in ended.output
    assert not list(ended.folder.logs.glob("trainer-*"))


def test_broken_data_ends_the_job_before_it_starts(jobs: Jobs) -> None:
    rows = jobs.folder / "broken.jsonl"
    rows.write_text('{"prompt": "a", "label": "b"}\n' * 9 + '{"prompt": \n')
    ended = jobs.run("data", data__path=str(rows))
    assert ended.code == 3
    assert "data.max_bad_share" in ended.output
    assert "broken.jsonl:10" in ended.output


def test_a_name_in_use_is_refused(jobs: Jobs) -> None:
    (jobs.folder / "runs" / "mine").mkdir(parents=True)
    ended = jobs.run("mine")
    assert ended.code == 2
    assert "--resume" in ended.output
