"""Ray's start on a busy host, and the end of the processes that it needs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlrun.runner.cluster import ray_health, ray_session
from rlrun.runner.cluster.ray import variables_of
from rlrun.runner.cluster.ray_health import JoinedCluster, dead_server, end_ray, take_started
from rlrun.runner.contracts.errors import JobError

TOO_SLOW = Exception("The current node timed out during startup.")
FULL = OSError(28, "No space left on device")
CHILD = """
import os, sys
from rlrun.runner.cluster.actor import Actor
Actor(sys.argv[1], {"TOKEN": "secret of a test"})
print(os.environ["TOKEN"] == "secret of a test")
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Processes by the names of Ray's, started as Ray does."""
    pids = {}
    for name in ("gcs_server", "raylet", "monitor"):
        program = tmp_path / name
        program.symlink_to("/bin/sleep")
        pids[name] = ray_health._OwnSession([str(program), "3600"]).pid
    yield pids
    end_ray(take_started())
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("gcs_server", "Ray's GCS (process {pid}) died: SIGKILL", id="GCS"),
        pytest.param("raylet", "Ray's raylet (process {pid}) died: SIGKILL", id="raylet"),
        pytest.param("monitor", None, id="one that a job does without"),
    ],
)
def test_a_dead_server_is_named_and_stays_a_zombie(
    started: dict[str, int], name: str, says: str | None
) -> None:
    assert dead_server() is None
    victim = psutil.Process(started[name])
    victim.kill()
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
    assert dead_server() == (says and says.format(pid=victim.pid))
    assert victim.status() == psutil.STATUS_ZOMBIE  # workers end when the raylet's id is gone


def test_what_ray_starts_outlives_a_signal_to_our_process_group(started: dict[str, int]) -> None:
    assert all(os.getpgid(pid) == pid for pid in started.values())


@pytest.mark.parametrize(
    ("failures", "tries", "says"),
    [
        pytest.param([], 1, None, id="up at once"),
        pytest.param([TOO_SLOW, TOO_SLOW], 3, None, id="up at last"),
        pytest.param([TOO_SLOW] * 3, 3, "timed out during startup. (3 tries", id="too slow"),
        pytest.param([FULL] * 3, 3, "No space left on device (3 tries", id="full disk"),
        pytest.param([ValueError("num_cpus")], 1, "on this host: num_cpus", id="our own mistake"),
    ],
)
def test_a_start_that_fails_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[Exception],
    tries: int,
    says: str | None,
) -> None:
    seen: list[list[str]] = []

    def init(cores: int, folder: Path) -> None:
        seen.append([path.name for path in folder.iterdir()])
        (folder / "session_1").mkdir()
        (folder / "session_latest").symlink_to("session_1")
        if len(seen) <= len(failures):
            raise failures[len(seen) - 1]

    monkeypatch.setattr(ray_session, "_init", init)
    if says is None:
        ray_session.start_here(1, tmp_path)
    else:
        with pytest.raises(JobError, match="Ray could not be started on this host") as raised:
            ray_session.start_here(1, tmp_path)
        assert says in str(raised.value)
    assert seen == [[]] * tries  # each found the folder empty


@pytest.mark.parametrize(
    ("load", "says"),
    [
        pytest.param(45.0, "The host is overloaded (load average 45 on 2 cores)", id="busy"),
        pytest.param(0.2, "load average 0 on 2 cores). Check that the host has free memory", id="idle"),
    ],
)
def test_the_cure_depends_on_the_load(load: float, says: str) -> None:
    assert says in ray_session.not_started(TOO_SLOW, load, 2)


START = """
import sys
from pathlib import Path
import psutil
from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.cluster.ray_session import start_here
start_here(1, Path(sys.argv[1]))
assert ray.get(ray.remote(lambda: 7).remote()) == 7
for process in psutil.Process().children(recursive=True):
    print(process.name(), *process.cmdline())
"""


def test_a_jobs_own_ray_starts_no_servers_that_nobody_asks(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("r")  # a socket's path may have 107 bytes
    run = subprocess.run(
        [sys.executable, "-c", START, str(folder)], capture_output=True, text=True, check=True
    )
    for needed in ("gcs_server", "raylet"):
        assert needed in run.stdout
    for idle in ("dashboard.py", "monitor.py"):
        assert idle not in run.stdout


def test_a_cluster_is_lost_after_several_refused_connections_in_a_row() -> None:
    cluster = JoinedCluster("127.0.0.1:9")
    assert [cluster.lost() is None for _ in range(3)] == [True, True, False]
    assert "127.0.0.1:9 cannot be reached" in (cluster.lost() or "")


def test_secrets_are_apart_from_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "abc")
    given = {"NCCL_DEBUG": "WARN", "TOKEN": "${env:OURS}", "HEADER": "Bearer ${env:OURS}"}
    assert variables_of(given) == ({"NCCL_DEBUG": "WARN"}, {"TOKEN": "abc", "HEADER": "Bearer abc"})


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ValueError, match="NOWHERE_SET is not set"):
        variables_of({"TOKEN": "${env:NOWHERE_SET}"})


def test_a_process_has_its_secrets_before_anything_else_and_prints_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", CHILD, str(log)], check=True)
    assert log.read_text().split() == ["True"]
