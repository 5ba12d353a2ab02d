"""Launches that begin at the same moment, or are killed before their job runs."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fault.moments import Fault, main_with
from tests.fault.test_ends import assert_nothing_left
from tests.integration.jobs import ROLLOUT_ONLY, Jobs, Running
from tests.waiting import wait_until

AGENTS_SECONDS = 180.0
"""For Ray's agents to start on a busy machine; only then do they see that their raylet has ended."""

ASK_RAY = """
import os, sys
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
import ray
ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
try:
    ray._raylet.GcsClient(address=sys.argv[1]).internal_kv_keys(b"", namespace=None, timeout=30)
    print("answered")
except ray.exceptions.AuthenticationError:
    print("refused")
"""


@pytest.fixture
def temporary(jobs: Jobs) -> Iterator[Path]:
    """The jobs' folder for temporary files."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        jobs.environment["TMPDIR"] = folder
        yield Path(folder)


def until_ray_starts(running: Running) -> None:
    running.until(lambda: any("gcs_server" in each.name() for each in living(running)), "Ray's first process")


def until_an_engine_starts(running: Running) -> None:
    running.until((running.folder.logs / "engine-0.log").exists, "an engine")


def living(running: Running) -> list[psutil.Process]:
    return [each for each in running.children() if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_the_next_launch_removes_what_a_launch_killed_at_its_start_left(jobs: Jobs, temporary: Path) -> None:
    settings = ROLLOUT_ONLY | {"trainer__steps": 1}
    before_ray = main_with([Fault("driver", "starting Ray", 1)])
    first = jobs.start("killed-before-ray", main=before_ray, **settings)
    moments = {"while-ray-starts": until_ray_starts, "while-engines-start": until_an_engine_starts}
    started = {name: jobs.start(f"killed-{name}", **settings) for name in moments}
    orphans: list[psutil.Process] = []
    for name, running in started.items():
        moments[name](running)
        orphans += running.children()
        running.signal(signal.SIGKILL)
    assert [running.wait().code for running in (first, *started.values())] == [-signal.SIGKILL] * 3
    assert not psutil.wait_procs(orphans, timeout=AGENTS_SECONDS)[1]
    assert list(temporary.glob("rlrun-*"))
    ended = jobs.run("after-the-killed", **settings)
    assert ended.code == 0, ended.output
    assert not list(temporary.glob("rlrun-*"))
    resumed = jobs.run("killed-while-ray-starts", "--resume", **settings)
    assert resumed.code == 0, resumed.output


def test_only_one_of_two_simultaneous_resumes_continues_and_its_ray_requires_a_token(
    jobs: Jobs, temporary: Path
) -> None:
    settings = ROLLOUT_ONLY | {"trainer__steps": 100_000}
    jobs.environment["RAY_AUTH_MODE"] = "disabled"
    killed = jobs.start("contended", **settings)
    killed.until_step(1)
    killed.signal(signal.SIGKILL)
    killed.wait()
    mine, link = jobs.folder / "mine" / "file", temporary / "rlrun-abcdefgh"
    mine.parent.mkdir()
    mine.touch()
    link.symlink_to(mine.parent)
    state = killed.folder.read_state() | {"scratch": str(link), "processes": {"trainer 0": os.getpid()}}
    killed.folder.write_state(state)
    resumes = [jobs.start("contended", "--resume", **settings) for _ in range(4)]
    wait_until(
        lambda: sum(each.process.poll() is None for each in resumes) <= 1,
        "the end of all jobs but one",
        lambda: resumes[0].output,
    )
    [winner] = [each for each in resumes if each.process.poll() is None]
    assert [each.process.returncode for each in resumes if each is not winner] == [2, 2, 2]
    assert winner.output.count("contended is still running") == 3
    steps = len(winner.folder.metrics.read_text().splitlines())
    winner.until_step(steps + 1)
    state = winner.folder.read_state()
    assert state["pid"] == winner.process.pid
    scratch = Path(state["scratch"])
    assert set(temporary.glob("rlrun-*")) == {scratch, link}
    assert mine.exists()
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    assert asked_without_its_token(scratch) == "refused\n"
    processes = winner.children()
    winner.signal(signal.SIGINT)
    ended = winner.wait()
    assert ended.code == 130
    assert_nothing_left(processes, ended)


def asked_without_its_token(scratch: Path) -> str:
    """What the Ray that has its files there answers to somebody who knows nothing but its port."""
    [port] = (scratch / "r" / "session_latest").glob("gcs_server_port_*")
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_AUTH_TOKEN", None)
    command = [sys.executable, "-c", ASK_RAY, f"127.0.0.1:{port.read_text().strip()}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
