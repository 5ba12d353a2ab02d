"""Sweeps as Python objects: `job.sweep({"trainer.lr": [1e-6, 1e-5]})` returns one that runs."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.api.runs import Run, frame
from rlrun.cli.detached import start_command
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.sweeps.sweep_folder import SweepFolder

if TYPE_CHECKING:
    import pandas as pd


class Sweep:
    """A sweep on disk, whose trials are runs."""

    def __init__(self, path: str | Path, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """`path` is the sweep's folder; `process` runs its trials, if this process has started it."""
        self.folder = SweepFolder(Path(path))
        self.process = process

    @property
    def runs(self) -> list[Run]:
        """The runs of the trials that have begun, in the order of the trials."""
        runs = [self.folder.run_of(trial) for trial in self.folder.trials()]
        return [Run(run.path) for run in runs if run.state.exists()]

    @property
    def best(self) -> Run | None:
        """The run of the trial with the best metric so far."""
        states = [state for state in self.folder.states() if state.is_best]
        return Run(self.folder.run_of(states[0].trial).path) if states else None

    def table(self) -> "pd.DataFrame":
        """Returns a data frame with a row for each trial: its values, status, step and metric."""
        metric = self.folder.metric()
        rows: list[dict[str, Any]] = [
            {"trial": state.trial.name, **state.trial.values, "status": state.status, "step": state.step}
            | {metric: state.score}
            for state in self.folder.states()
        ]
        return frame(rows).set_index("trial")

    def wait(self, timeout: float | None = None) -> "Sweep":
        """Waits until all trials have ended.

        Raises JobError if one has failed, TimeoutError after `timeout` seconds, and ValueError if another
        process has started the sweep.
        """
        try:
            code = self._own_process().wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.folder.shown} is still running after {timeout:g} s") from None
        if code == ExitCode.FAILED:
            failed = [state.trial.name for state in self.folder.states() if state.status == "failed"]
            raise JobError(f"trials failed: {', '.join(failed)}; their logs are in {self.folder.logs}")
        return self

    def stop(self) -> None:
        """Asks the trials that run to save and end, and waits until they have."""
        process = self._own_process()
        process.send_signal(signal.SIGINT)
        process.wait()

    def _own_process(self) -> "subprocess.Popen[bytes]":
        if self.process is None:
            raise ValueError(f"{self.folder.shown} was started by another process: wait for or stop it there")
        return self.process


def start_sweep(arguments: Sequence[str], document: str, path: Path) -> Sweep:
    """Runs `rlrun sweep launch` with the arguments; returns as soon as the list of trials is in `path`.

    Raises JobError with the command's output if it ends before that.
    """
    began = time.time()

    def look(process: "subprocess.Popen[bytes]") -> Sweep | None:
        sweep = Sweep(path, process)
        return sweep if _is_written(sweep.folder.record, began) else None

    return start_command(["sweep", "launch", *arguments], document, look)[1]


def _is_written(path: Path, since: float) -> bool:
    """Returns whether a file was written after a time; a resumed sweep writes its list again."""
    return path.exists() and path.stat().st_mtime >= since
