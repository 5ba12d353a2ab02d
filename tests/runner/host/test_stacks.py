"""Processes that hang say where they are, and processes that cannot are not harmed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rlrun.runner.host.stacks import Frame, describe, read_stacks, where
from tests.waiting import wait_until

PROGRAM = """
import asyncio, fcntl, os, queue, select, signal, socket, subprocess, sys, threading, time
from rlrun.runner.host.stacks import write_when_asked

write_when_asked()

def stuck():
    print("ready", flush=True)
    HANG

stuck()
"""
HANGS = {
    "a loop": "while True: pass",
    "a sleep": "time.sleep(3600)",
    "a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a queue": "queue.Queue().get()",
    "a pipe": "os.read(os.pipe()[0], 1)",
    "a socket": "pair = socket.socketpair(); pair[0].recv(1)",
    "an accept": "server = socket.create_server(('127.0.0.1', 0)); server.accept()",
    "a child": "subprocess.run(['sleep', '3600'])",
    "a barrier": "threading.Barrier(2).wait()",
    "a condition": "condition = threading.Condition(); condition.acquire(); condition.wait()",
    "an event": "threading.Event().wait()",
    "a thread": "thread = threading.Thread(target=time.sleep, args=(3600,)); thread.start(); thread.join()",
    "an event loop": "asyncio.run(asyncio.sleep(3600))",
    "a poll": "select.select([os.pipe()[0]], [], [])",
    "a signal": "signal.pause(); signal.pause()",
    "an expression": "sum(range(10**15))",
    "a process": "os.waitpid(os.posix_spawn('/bin/sleep', ['sleep', '3600'], {}), 0)",
    "a file lock": "a, b = open(sys.argv[0]), open(sys.argv[0]); fcntl.flock(a, 2); fcntl.flock(b, 2)",
    "a generator": "all(True for _ in iter(int, 1))",
    "a regular expression": "import re; re.match('(a+)+b', 'a' * 60)",
}


@contextmanager
def hanging(tmp_path: Path, hang: str) -> Iterator[tuple[int, Path]]:
    """Yields the id and the log of a process that hangs."""
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(PROGRAM.replace("HANG", hang))
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(program)], stdout=file, stderr=file, start_new_session=True
        )
    try:
        wait_until(lambda: "ready" in log.read_text(), "the process", log.read_text)
        yield process.pid, log
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("what", HANGS)
def test_a_process_that_hangs_names_the_function_and_keeps_its_stack(tmp_path: Path, what: str) -> None:
    with hanging(tmp_path, HANGS[what]) as (pid, log):
        place = asyncio.run(where(pid, log))
        assert place.startswith("it is in "), place
        assert "in stuck\n" in log.read_text()
        assert psutil.pid_exists(pid)


def test_a_stopped_process_is_said_to_be_stopped(tmp_path: Path) -> None:
    with hanging(tmp_path, "time.sleep(3600)") as (pid, log):
        os.kill(pid, signal.SIGSTOP)
        stopped = psutil.Process(pid)
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "the stop", lambda: "")
        assert asyncio.run(where(pid, log)) == "its process is stopped (SIGSTOP)"


def test_a_process_that_does_not_handle_the_signal_is_not_sent_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(["sleep", "3600"], stderr=file)
    try:
        assert asyncio.run(where(process.pid, log)) == "its process does not write its stack"
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_process_with_another_log_is_not_asked(tmp_path: Path) -> None:
    """On another host the number may be that of any process here."""
    other = tmp_path / "other"
    other.touch()
    with hanging(tmp_path, "time.sleep(3600)") as (pid, log):
        assert asyncio.run(where(pid, other)) == "its process is not on this host"
        assert "Thread" not in log.read_text()


def test_a_process_that_ended_is_said_to_have_ended(tmp_path: Path) -> None:
    with hanging(tmp_path, "time.sleep(3600)") as (pid, log):
        pass
    assert asyncio.run(where(pid, log)) == "its process has ended, or is on another host"


def test_the_thread_with_rlruns_code_is_described() -> None:
    text = """
step 3
Thread 0x00007f3 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f4 [MainThread] (most recent call first):
  File "/home/me/rlrun/.venv/lib/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/home/me/rlrun/rlrun/runner/trainer/roles/learner.py", line 90 in train
  File "/home/me/rlrun/rlrun/runner/cluster/actors.py", line 26 in run
"""
    stacks = read_stacks(text)
    assert stacks[0][0] == Frame("/usr/lib/python3.11/threading.py", 327, "wait")
    caller = "train (rlrun/runner/trainer/roles/learner.py:90)"
    assert describe(stacks) == f"it is in all_reduce (distributed_c10d.py:2810), called by {caller}"
    assert describe(stacks[:1]) == "it is in wait (threading.py:327)"
