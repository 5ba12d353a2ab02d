import asyncio
import errno
import logging
import re
import socket
import sys
from pathlib import Path

import pytest

from rlrun.models.checked_values import check_tensor_name
from rlrun.runner.cluster.actor import reports_failure
from rlrun.runner.cluster.ray_session import join
from rlrun.runner.contracts.errors import JobError, NodeLost
from rlrun.runner.host.failures import Failure, ProcessFailure, first_cause, gather_or_first_cause
from rlrun.runner.records.driver_log import LogFile


def failure(process: str, kind: str, what: str, log: Path = Path("none.log")) -> ProcessFailure:
    return ProcessFailure(process, kind, what, log)  # type: ignore[arg-type]


def test_a_failure_shows_the_end_of_the_log_and_where_it_is(tmp_path: Path) -> None:
    log = tmp_path / "trainer-1.log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    died = failure("trainer 1", "died", "killed", log)
    assert str(died) == "trainer 1 died: killed"
    assert "line 99" in died.details
    assert "line 79" not in died.details
    assert str(log) in died.details


def test_a_message_of_our_own_needs_no_trace(tmp_path: Path) -> None:
    @reports_failure
    def load(_: object, text: str) -> None:
        check_tensor_name(text, Path("a")) if text else int("x")

    log = tmp_path / "engine-0.log"
    log.write_text("Traceback (most recent call last):\n")
    ours, foreign = load(None, "../x"), load(None, "")
    assert isinstance(ours, Failure) and isinstance(foreign, Failure)
    assert (ours.explained, foreign.explained) == (True, False)
    assert foreign.error.startswith("ValueError: invalid literal")
    told = ProcessFailure("engine 0", "raised", ours.error, log, explained=True)
    assert str(told) == f"engine 0 failed: {ours.error}"
    assert told.details == f"  (whole log: {log})"


def test_a_full_disk_costs_the_trace_and_not_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    @reports_failure
    def save(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys.stderr, "write", write)
    failed = save(None)
    monkeypatch.undo()
    assert isinstance(failed, Failure)
    assert failed.errno == errno.ENOSPC


def test_a_log_on_a_full_disk_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    log = LogFile("/dev/full")
    log.emit(logging.makeLogRecord({"msg": "a line"}))
    log.close()
    assert capsys.readouterr().err == ""


def test_a_log_that_is_not_there_is_named() -> None:
    assert "its log would be" in failure("trainer 0", "died", "").details


@pytest.mark.parametrize("order", [1, -1])
def test_a_death_explains_an_error_and_an_error_a_broken_connection(order: int) -> None:
    death = failure("trainer 1", "died", "killed")
    error = failure("trainer 2", "raised", "ValueError: no such model")
    echo = failure("trainer 0", "raised", "RuntimeError: [gloo/pair.cc] Connection closed by peer")
    lost = NodeLost("node 10.0.0.2 of the cluster is lost")
    assert first_cause([echo, error, death, lost][::order]) is lost
    assert first_cause([echo, error, death][::order]) is death
    assert first_cause([echo, error][::order]) is error
    assert first_cause([echo]) is echo


@pytest.mark.parametrize(
    ("kind", "what", "passes"),
    [
        ("died", "killed", True),
        ("hung", "'ping' did not end within 3 s", True),
        ("raised", "RuntimeError: [gloo/pair.cc] Connection closed by peer", True),
        ("raised", "AcceleratorError: CUDA error: uncorrectable ECC error encountered", True),
        ("raised", "NonFiniteError: the loss of step 3 is nan", False),
        ("raised", "ValueError: no such model", False),
    ],
)
def test_failures_that_a_restart_may_cure(kind: str, what: str, passes: bool) -> None:
    assert failure("trainer 0", kind, what).is_transient is passes


async def test_the_first_cause_may_come_second() -> None:
    async def late_death() -> None:
        await asyncio.sleep(0.01)
        raise failure("trainer 1", "died", "killed")

    async def echo() -> None:
        raise failure("trainer 0", "raised", "RuntimeError: gloo: Connection closed by peer")

    with pytest.raises(ProcessFailure, match="trainer 1 died"):
        await gather_or_first_cause([echo(), late_death()])


async def test_results_come_in_order() -> None:
    async def answer(number: int) -> int:
        await asyncio.sleep(0.01 / (number + 1))
        return number

    assert await gather_or_first_cause([answer(n) for n in range(4)]) == [0, 1, 2, 3]


async def test_the_others_are_ended_with_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.runner.host.failures._GRACE_SECONDS", 0.01)
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await gather_or_first_cause([forever(), fail()])
    assert ended.is_set()


class Actor:
    @reports_failure
    def save(self, full: bool) -> str:
        if full:
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError as error:
                raise RuntimeError("cannot write") from error
        return "saved"


def test_errors_of_processes_arrive_as_text(capfd: pytest.CaptureFixture[str]) -> None:
    answer = Actor().save(True)
    assert isinstance(answer, Failure)
    assert answer.error == "RuntimeError: cannot write"
    assert answer.errno == errno.ENOSPC
    assert "No space left on device" in capfd.readouterr().err
    assert Actor().save(False) == "saved"


def test_a_full_disk_there_is_a_full_disk_here() -> None:
    full = ProcessFailure(
        "trainer 0", "raised", "OSError: [Errno 28] No space left", Path("log"), errno.ENOSPC
    )
    with pytest.raises(OSError, match="trainer 0 failed") as caught:
        full.raise_os_error()
    assert caught.value.errno == errno.ENOSPC
    failure("trainer 0", "raised", "ValueError: x").raise_os_error()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_cluster_that_cannot_be_reached_is_named(host: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{host}:{free.getsockname()[1]}"
        with pytest.raises(JobError, match=rf"cluster.address = '{re.escape(address)}' could not be joined"):
            join(address)
