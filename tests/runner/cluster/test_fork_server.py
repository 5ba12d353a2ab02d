"""The fork server: its forks are the processes that were asked for, with what they need imported."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlrun.runner.cluster.fork_server import ForkServer

REPORTS = """
import json, os, sys

print(json.dumps({
    "imported": "wave" in sys.modules,
    "arguments": sys.argv,
    "variables": [os.environ.get(name) for name in ("RANK", "THREADS", "LEFT_OUT")],
    "folder": os.getcwd(),
    "parent": os.getppid(),
    "group": os.getpgrp() == os.getpid(),
    "input": sys.stdin.read(),
}))
sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    program = tmp_path / "worker.py"
    program.write_text(REPORTS)
    return program


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.setenv("LEFT_OUT", "of the request")
    started = ForkServer(tmp_path, ["wave"], {"THREADS": "2", "RANK": "0"})
    yield started
    started.close()


def run(python: str, program: Path, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Starts a worker as Ray does."""
    return subprocess.run(
        ["bash", "-c", f"exec {python} {shlex.quote(str(program))} --number 7"],
        env={"PATH": os.environ["PATH"], "CODE": str(code), **variables},
        cwd=program.parent,
        input="words",
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )


def executable(server: ForkServer) -> str | None:
    return asyncio.run(server.executable())


def test_a_fork_has_the_modules_arguments_variables_folder_streams_and_exit_code(
    server: ForkServer, worker: Path
) -> None:
    python = executable(server)
    assert python is not None
    for rank, code in (("0", 0), ("1", 3)):
        ended = run(python, worker, code, RANK=rank, THREADS="2")
        assert json.loads(ended.stdout) == {
            "imported": True,
            "arguments": [str(worker), "--number", "7"],
            "variables": [rank, "2", None],
            "folder": str(worker.parent),
            "parent": server.process.pid,
            "group": True,
            "input": "words",
        }
        assert (ended.returncode, ended.stderr) == (code, "")


def test_forks_live_side_by_side_and_a_killed_one_ends_what_stands_for_it(
    server: ForkServer, worker: Path
) -> None:
    worker.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(3600)\n")
    command = [*shlex.split(executable(server) or ""), str(worker)]
    first, second = (subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2))
    assert first.stdout is not None
    assert second.stdout is not None
    forks = [int(first.stdout.readline()), int(second.stdout.readline())]
    os.kill(forks[0], signal.SIGKILL)
    assert first.wait(60) == 128 + signal.SIGKILL
    assert psutil.pid_exists(forks[1])
    assert not psutil.pid_exists(forks[0]), "the server reaps its forks"
    server.close()
    assert psutil.pid_exists(forks[1]), "a fork outlives the server"
    os.kill(forks[1], signal.SIGKILL)
    second.wait(60)


def test_without_the_server_a_worker_imports_for_itself(server: ForkServer, worker: Path) -> None:
    python = executable(server)
    assert python is not None
    server.process.kill()
    server.process.wait()
    ended = run(python, worker, 3)
    report = json.loads(ended.stdout)
    assert not report["imported"]
    assert (report["arguments"], report["input"]) == ([str(worker), "--number", "7"], "words")
    assert ended.returncode == 3
    assert executable(server) is None


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise OSError('no such library')", "OSError: no such library"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
            "the imported modules have started 1 threads",
        ),
    ],
)
def test_a_server_that_cannot_fork_says_why(
    module: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "imported_by_forks.py").write_text(textwrap.dedent(module))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer(tmp_path, ["imported_by_forks"], {})
    assert executable(server) is None
    server.close()
    assert caplog.messages == [f"each process imports for itself; the fork server has ended: {reason}"]


def test_what_a_module_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_forks.py").write_text("print('hello')\nraise OSError('too early')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer(tmp_path, ["imported_by_forks"], {})
    assert executable(server) is None
    server.close()


def test_a_process_with_other_variables_is_no_fork(server: ForkServer) -> None:
    assert server.suits({"THREADS": "2", "RANK": "5", "WORLD_SIZE": "8"})
    assert not server.suits({"THREADS": "1", "RANK": "0"})
    assert not server.suits({"RANK": "0"})
    assert sys.executable in (executable(server) or "")
