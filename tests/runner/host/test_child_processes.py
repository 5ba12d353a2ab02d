"""What a launch has started ends with it, also if its driver is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlrun.plugins.launch_variable import LAUNCH_VARIABLE
from rlrun.runner.host.child_processes import children, guarded, guardians

SECONDS = 60.0
"""For a process to end on a busy machine."""

DRIVER = """
import subprocess, sys
from rlrun.runner.host.child_processes import guarded

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
PARENT = f"import subprocess; print(subprocess.Popen({SLEEP!r}, start_new_session=True).pid, flush=True)"

with guarded("rlrun-a-test") as guardian:
    plain = subprocess.Popen(SLEEP)
    own_session = subprocess.Popen(SLEEP, start_new_session=True)
    parent = subprocess.Popen([sys.executable, "-S", "-c", PARENT], stdout=subprocess.PIPE)
    daemon = int(parent.stdout.readline())
    renamed = subprocess.Popen(SLEEP, env={}, start_new_session=True)  # as Ray's processes, without our name
    guardian.note_session(renamed.pid)
    print(plain.pid, own_session.pid, daemon, renamed.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def driver() -> Iterator["subprocess.Popen[bytes]"]:
    """A driver that has started processes of several kinds."""
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("end", ["killed", "ended"])
def test_no_process_outlives_the_driver(driver: "subprocess.Popen[bytes]", end: str) -> None:
    assert driver.stdout is not None and driver.stdin is not None
    started = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
    bystander = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
    assert len(started) == 4
    if end == "killed":
        driver.kill()
    else:
        driver.stdin.close()
    _, running = psutil.wait_procs(started, timeout=SECONDS)
    assert not running
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_processes_inherit_the_name_of_their_launch_for_as_long_as_it_lasts() -> None:
    before = os.environ.get(LAUNCH_VARIABLE)
    with guarded("rlrun-one"):
        assert os.environ[LAUNCH_VARIABLE] == "rlrun-one"
        assert guardians  # it is not killed with the processes of a launch
        assert not guardians & {process.pid for process in children()}
    assert os.environ.get(LAUNCH_VARIABLE) == before


def test_a_guardian_ignores_the_signals_of_the_terminal(tmp_path: Path) -> None:
    with guarded("rlrun-one"):
        [guardian] = map(psutil.Process, guardians)
        assert os.getpgid(guardian.pid) != os.getpgid(0)
        guardian.send_signal(signal.SIGKILL)
        guardian.wait()  # without it, a launch still ends as any other
