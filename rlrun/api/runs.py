"""Runs as Python objects: their state, metrics and samples, and a way to stop them.

pandas is imported only where a data frame is asked for.
"""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli.run_states import list_runs
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.job.run_ending import ENDING_TIMEOUT_S, has_ended, interrupt, stop_timeout
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.packed_lines import read_records
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import with_arrays
from rlrun.runner.records.state import is_alive
from rlrun.specs.step_names import ROLLOUTS, list_step_paths

if TYPE_CHECKING:
    import pandas as pd

_POLL_S = 0.2


def runs(runs_dir: str | Path = "runs") -> "list[Run]":
    """Returns every run of a runs folder, newest first."""
    return [Run(folder.path) for folder in list_runs(Path(runs_dir))]


class Run:
    """A run on disk, which may still be running."""

    def __init__(self, path: str | Path) -> None:
        """`path` is the run's folder."""
        self.folder = RunFolder(Path(path))

    def __repr__(self) -> str:
        state = self.state
        return f"<run {self.name}: {state['status']}, step {state['step']} of {state['steps'] or '?'}>"

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.name

    @property
    def state(self) -> dict[str, Any]:
        """What `rlrun status --json` prints: status, step, steps, the last metrics, the error."""
        return self.folder.current_state()

    @property
    def status(self) -> str:
        """`running`, `done`, `failed`, `interrupted` or `died`."""
        return str(self.state["status"])

    def metrics(self) -> "pd.DataFrame":
        """Returns the metrics as a data frame with a row for each step, indexed by `step`."""
        return frame(read_metrics(self.folder.metrics)).set_index("step")

    def samples(self, step: int | None = None, *, arrays: bool = False) -> "pd.DataFrame":
        """Returns the samples of a step, or of all steps, as a data frame with a row for each sample.

        `arrays`: the columns `response_tokens`, `log_probs`, `trainer_log_probs`, `loss_mask`, `advantages`
        and `prompt_tokens` hold numpy arrays, which `np.stack` or `np.concatenate` joins. They are None for
        samples that were saved without them. Otherwise, they hold the file's encoding.

        Raises ValueError if the run has no samples of the step.
        """
        paths = list_step_paths(self.folder.rollouts, ROLLOUTS)
        if step is not None and step not in paths:
            raise ValueError(f"{self.name} has no samples of step {step}; it has those of {sorted(paths)}")
        steps = sorted(paths) if step is None else [step]
        records = ({"step": each, **record} for each in steps for record in read_records(paths[each]))
        return frame(map(with_arrays, records) if arrays else records)

    def stream(self) -> Iterator[dict[str, Any]]:
        """Yields the metrics of every step as it ends, from the first step on, until the run ends."""
        seen = 0
        while True:
            running = is_alive(
                self.folder.read_state()
            )  # before reading, so that the last step is not missed
            lines = read_metrics(self.folder.metrics)
            yield from lines[seen:]
            seen = len(lines)
            if not running:
                return
            time.sleep(_POLL_S)

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits until the run ends, and returns its state.

        Raises JobError with the run's error if it failed, and TimeoutError after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while is_alive(self.folder.read_state()):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.name} is still running after {timeout:g} s")
            time.sleep(_POLL_S)
        state = self.state
        if state["status"] in ("failed", "died"):
            raise JobError(state["error"] or f"{self.name} died; see {self.folder.logs}")
        return state

    def stop(self) -> dict[str, Any]:
        """Asks the run to save its last step and end, waits until it has, and returns its state.

        Raises ValueError if the run is not running, and TimeoutError if it does not end in time.
        """
        state = self.folder.read_state()
        if not is_alive(state):
            raise ValueError(f"{self.name} is not running: {self.status}")
        interrupt(self.folder, state)
        seconds = stop_timeout(self.folder) + ENDING_TIMEOUT_S
        if not has_ended(self.folder, seconds):
            raise TimeoutError(f"{self.name} was asked to stop and is still running after {seconds:g} s")
        return self.state


class LaunchedRun(Run):
    """A run that this process has launched."""

    def __init__(self, path: Path, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(path)
        self.process = process
        """The driver; it continues if this process ends."""

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """As `Run.wait`; the driver's process has ended when it returns."""
        state = super().wait(timeout)
        self.process.wait(timeout)
        return state


def frame(rows: Any) -> "pd.DataFrame":
    """Returns a data frame. Raises ModuleNotFoundError, which says what to install, without pandas."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; data frames need it: pip install 'rlrun[notebook]'") from error
    return pd.DataFrame(list(rows))
