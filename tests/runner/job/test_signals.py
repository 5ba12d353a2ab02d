"""Signals to a process that runs what a launch does with them."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rlrun.runner.job.signals import ends_at_once
from tests.waiting import PATIENCE

DRIVER = """
import asyncio, signal, sys
from contextlib import suppress
from rlrun.runner.job import signals
from rlrun.runner.job.stopping import StopRequest

asked_together = sys.argv[1] == "together"
signals._SAME_REQUEST_SECONDS = 3600.0 if asked_together else 0.0

async def main():
    stop = StopRequest()

    async def work():
        with stop.listening():
            print("ready", flush=True)
            await stop._event.wait()
            print("saving", flush=True)
            if asked_together:  # both signals have arrived by then
                await asyncio.to_thread(sys.stdin.readline)
            else:
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    signals.stop_on_signals(task, stop, lambda text: print(text, flush=True), float(sys.argv[2]))
    with suppress(asyncio.CancelledError):
        await task
    print("ended", flush=True)

asyncio.run(main())
"""


@contextmanager
def driver(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that waits to be asked to stop."""
    command = [sys.executable, "-c", DRIVER, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("first", "repeated", "seconds", "at_once"),
    [
        pytest.param("SIGINT", "SIGINT", 5.0, True, id="a user asks twice"),
        pytest.param("SIGINT", "SIGINT", 0.1, False, id="a Ctrl-C that a wrapper forwards"),
        pytest.param("SIGHUP", "SIGTERM", 5.0, True, id="a terminal closes, then a kill"),
        pytest.param("SIGUSR1", "SIGTERM", 20.0, False, id="the end of a grace time"),
        pytest.param("SIGUSR1", "SIGUSR1", 20.0, False, id="a time limit during a preemption"),
        pytest.param("SIGUSR1", "SIGHUP", 20.0, False, id="the scheduler closes the session"),
        pytest.param("SIGUSR1", "SIGINT", 5.0, True, id="a user does not want to wait for it"),
        pytest.param("SIGTERM", "SIGUSR1", 5.0, False, id="a launcher passes on a SIGTERM that all have"),
    ],
)
def test_which_second_signal_means_at_once(first: str, repeated: str, seconds: float, at_once: bool) -> None:
    assert ends_at_once(signal.Signals[first], signal.Signals[repeated], seconds) is at_once


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_lets_the_run_save(number: signal.Signals) -> None:
    with driver("together", "60") as process:
        process.send_signal(number)
        process.send_signal(number)  # a closed terminal sends two
        output, _ = process.communicate("\n", timeout=PATIENCE)
    assert process.returncode == 0
    asked = "stopping for the scheduler (SIGUSR1)" if number == signal.SIGUSR1 else "stopping"
    assert output.count(f"{asked}: finishing step 0 and saving (at most 60 s") == 1
    assert output.endswith("saving\nended\n")


def test_a_second_signal_ends_it_at_once() -> None:
    with driver("apart", "60") as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        while process.stdout.readline() != "saving\n":
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 130


def test_a_run_that_does_not_save_in_time_is_ended() -> None:
    with driver("apart", "0.01") as process:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    assert "not finished within 0.01 s (checkpoint.stop_timeout): ending now" in output
    assert output.endswith("ended\n")


def test_a_run_under_nohup_survives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with driver("together", "60") as process:
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate("\n", timeout=PATIENCE)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert output.count("stopping") == 1
    assert output.endswith("ended\n")
