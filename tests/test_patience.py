"""What a test that waited in vain says, and that processes of a failed group are not waited for."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import waiting


def start(code: str, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("w") as file:
        return subprocess.Popen([sys.executable, "-u", "-c", code], stdout=file)


async def test_the_message_names_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="waited 0 s in vain for step 3\nthe log's end"):
        waiting.wait_until(lambda: False, "step 3", lambda: "the log's end")
    with pytest.raises(AssertionError, match="waited 0 s in vain for step 4"):
        await waiting.until(lambda: False, "step 4")


def test_a_group_ends_with_the_first_process_that_fails(tmp_path: Path) -> None:
    logs = [tmp_path / "failing.log", tmp_path / "waiting.log"]
    codes = ["print('no such layer'); raise SystemExit(3)", "import time; time.sleep(6000)"]
    processes = [start(code, log) for code, log in zip(codes, logs, strict=True)]
    with pytest.raises(AssertionError, match=r"worker.py on 2 ranks: .*\[3, None\]:\nno such layer"):
        waiting.wait_for_all(processes, logs, "worker.py on 2 ranks")
    assert [process.poll() for process in processes] == [3, -9]


def test_a_group_that_ends_well_is_waited_for(tmp_path: Path) -> None:
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    processes = [start("print('done')", log) for log in logs]
    waiting.wait_for_all(processes, logs, "two ranks")
    assert [log.read_text() for log in logs] == ["done\n", "done\n"]


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    waiting.wait_for_ends([psutil.Process(process.pid)])
    assert process.wait() == 0


def test_pytests_limit_is_longer(pytestconfig: pytest.Config) -> None:
    """Otherwise pytest would end a test before it can say what it waited for."""
    assert float(pytestconfig.getini("timeout")) > waiting.PATIENCE
