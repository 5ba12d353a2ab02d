"""Trials start in free slots, and a sweep that was killed or stopped goes on; launches are stand-ins."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.runner.records.state import is_alive
from rlrun.runner.sweeps.run_sweep import _Running, _Stop
from rlrun.runner.sweeps.sweep_folder import SweepFolder
from rlrun.runner.sweeps.trials import Trial
from tests.waiting import PATIENCE, wait_until

"""Deadline for a state, on a busy machine."""


class Sweeping:
    """Sweeps over the same folder, each in a process of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = SweepFolder(tmp_path / "sweep")
        self.hold = tmp_path / "hold"
        self.process: subprocess.Popen[str] | None = None

    def start(self, values: str = "a,b,c,d", parallel: int = 1, *, held: bool = False) -> None:
        """Begins a sweep; `held`: its trials end when `hold` is removed."""
        if held:
            self.hold.touch()
        else:
            self.hold.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.runner.sweeps.sweeping"]
        arguments = [str(self.folder.path), str(self.hold), str(parallel), values]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Returns the exit code of the sweep and what it has printed; `number` is a signal to send first."""
        assert self.process is not None
        if number is not None:
            self.process.send_signal(number)
        output = self.process.communicate(timeout=PATIENCE)[0]
        return self.process.returncode, output

    def statuses(self) -> list[str]:
        """The status of each trial."""
        return [state.status for state in self.folder.states()] if self.folder.record.exists() else []

    def until(self, *statuses: str) -> None:
        """Waits until the trials have these statuses."""
        wait_until(
            lambda: self.statuses() == list(statuses), f"trials {statuses}", lambda: str(self.statuses())
        )

    def until_nothing_runs(self) -> None:
        """Waits for the end of every launch."""
        runs = [self.folder.run_of(trial) for trial in self.folder.trials()]
        wait_until(lambda: not any(is_alive(run.read_state()) for run in runs), "the end of every launch")


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweeping]:
    sweeping = Sweeping(tmp_path)
    yield sweeping
    if sweeping.process is not None:
        sweeping.process.kill()
        sweeping.process.communicate()


def test_trials_run_in_free_slots(sweep: Sweeping) -> None:
    sweep.start(parallel=2, held=True)
    sweep.until("running", "running", "waiting", "waiting")
    sweep.hold.unlink()
    code, output = sweep.end()
    assert (code, sweep.statuses()) == (0, ["done"] * 4)
    assert output.count(": starts") == 4 and output.count(": done at step 2") == 4
    assert [state.is_best for state in sweep.folder.states()] == [True, False, False, False]


def test_a_trial_that_fails_does_not_end_the_sweep(sweep: Sweeping) -> None:
    sweep.start("a,fails,c")
    code, output = sweep.end()
    assert (code, sweep.statuses()) == (3, ["done", "failed", "done"])
    assert f"see {sweep.folder.logs}/1-type-fails.log" in output


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130)]
)
def test_a_sweep_goes_on_where_it_stopped(sweep: Sweeping, number: int, code: int) -> None:
    sweep.start("a")
    assert sweep.end()[0] == 0
    began = sweep.folder.run_of(sweep.folder.trials()[0]).read_state()["updated"]
    sweep.start(held=True)
    sweep.until("done", "running", "waiting", "waiting")
    assert sweep.end(number)[0] == code
    sweep.until_nothing_runs()
    assert sweep.statuses() == ["done", "interrupted", "waiting", "waiting"]
    sweep.start()
    ended, output = sweep.end()
    assert (ended, sweep.statuses()) == (0, ["done"] * 4)
    assert "1-type-b: continues" in output and output.count(": starts") == 2 and "0-type-a" not in output
    assert sweep.folder.run_of(sweep.folder.trials()[0]).read_state()["updated"] == began


def test_a_failed_trial_is_tried_again_by_a_resumed_sweep(sweep: Sweeping) -> None:
    sweep.start("fails,b")
    assert sweep.end()[0] == 3
    sweep.start("fails,b")
    code, output = sweep.end()
    assert (code, "0-type-fails: continues" in output, "1-type-b" in output) == (3, True, False)


def test_a_launch_that_begins_while_a_signal_arrives_is_told() -> None:
    stop = _Stop()
    stop(signal.SIGTERM, None)
    process = subprocess.Popen(["sleep", "600"])
    try:
        stop.add(process, _Running(Trial("0", {}), {}, 0.0))
        assert process.wait(PATIENCE) == -signal.SIGTERM
    finally:
        process.kill()
