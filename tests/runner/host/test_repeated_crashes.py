"""Which crashes are taken for ones that repeat."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlrun.runner.contracts.errors import JobError
from rlrun.runner.host.failures import ProcessFailure
from rlrun.runner.host.repeated_crashes import Crashes, fatal_signal


def died(what: str) -> ProcessFailure:
    return ProcessFailure("trainer 0", "died", what, Path("trainer-0.log"))


SIGILL = died("its process crashed: SIGILL (Illegal instruction)")
SIGSEGV = died("its process crashed: SIGSEGV (Segmentation fault)")
SIGABRT = died("its process crashed: SIGABRT (Aborted)")
KILLED = died("its process ended without a word: killed, out of memory, or crashed")
HUNG = ProcessFailure("trainer 0", "hung", "'ping' did not end within 60 s", Path("trainer-0.log"))
SERVER = JobError("engine 0 failed: the SGLang server ended (signal SIGSEGV): nothing")


@pytest.mark.parametrize(
    ("failures", "gives_up"),
    [
        pytest.param([(SIGILL, 7)], False, id="once"),
        pytest.param([(SIGILL, 7), (SIGILL, 7)], True, id="twice at the same step"),
        pytest.param([(SIGILL, 0), (SIGILL, 0)], True, id="twice before the first step"),
        pytest.param([(SIGILL, 7), (SIGILL, 8)], False, id="a step was finished in between"),
        pytest.param([(SIGILL, 7), (SIGSEGV, 7)], False, id="another signal"),
        pytest.param([(SIGILL, 7), (KILLED, 7), (SIGILL, 7)], False, id="something else in between"),
        pytest.param([(KILLED, 7), (KILLED, 7)], False, id="killed, out of memory perhaps"),
        pytest.param([(HUNG, 7), (HUNG, 7)], False, id="hung"),
        pytest.param([(SIGABRT, 7), (SIGABRT, 7)], False, id="NCCL gave up waiting"),
        pytest.param([(SERVER, 7), (SERVER, 7)], True, id="a server of SGLang's"),
    ],
)
def test_a_crash_at_the_same_place_twice_is_the_last(
    failures: Sequence[tuple[JobError, int]], gives_up: bool
) -> None:
    crashes = Crashes()
    *before, (last, step) = failures
    for failure, place in before:
        crashes.check(failure, place)
    if not gives_up:
        crashes.check(last, step)
        return
    with pytest.raises(JobError, match=r"at the same place before, so another start would not help"):
        crashes.check(last, step)


@pytest.mark.parametrize("name", ["SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT"])
def test_the_signal_is_read_from_the_log_of_a_real_crash(tmp_path: Path, name: str) -> None:
    log = tmp_path / "trainer-0.log"
    log.write_text("Fatal Python error: Bus error\n")  # of a process before this one
    start = log.stat().st_size
    assert fatal_signal(log, start) is None
    crash = f"import faulthandler, os, signal; faulthandler.enable(); os.kill(os.getpid(), signal.{name})"
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", crash], stderr=file, check=False)
    found = fatal_signal(log, start)
    assert found is not None
    assert found.startswith(f"{name} (")


def test_a_log_that_is_not_there_names_no_signal(tmp_path: Path) -> None:
    assert fatal_signal(tmp_path / "trainer-0.log", 0) is None
