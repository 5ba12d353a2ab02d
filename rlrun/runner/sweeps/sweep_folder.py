"""A sweep on disk: a folder of runs, one for each trial, and a list of the trials.

runs/<name>-sweep/
  sweep.json         the trials with their values, and the metric that they are compared by
  sweep.lock         locked while the sweep runs
  logs/<trial>.log   what the launches of a trial printed
  <trial>/           an ordinary run: rlrun runs, status, logs and view with --runs-dir
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ValidationError

from rlrun.models.foreign_files import read_bytes
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.host.atomic_files import write_json
from rlrun.runner.host.file_lock import try_lock
from rlrun.runner.records.claim import check_has_no_links
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.run_folder import PRIVATE, RunFolder
from rlrun.runner.sweeps.trials import Trial, best_of
from rlrun.specs.paths import display_path

_MAX_BYTES = 64 << 20


class _Record(BaseModel):
    """The contents of sweep.json."""

    metric: str
    larger: bool
    trials: list[Trial]


@dataclass(frozen=True, slots=True)
class TrialState:
    """How far a trial is."""

    trial: Trial
    status: str
    """The status of its run; `waiting` if it has none yet."""
    step: int
    steps: int | None
    score: float | None
    """The last value of the metric; None before the first."""
    is_best: bool = False


class SweepFolder:
    """The folder of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "sweep.json"
        self.logs = path / "logs"

    @property
    def shown(self) -> str:
        """The path as messages show it."""
        return display_path(self.path)

    @contextmanager
    def claimed(self, *, resume: bool) -> Iterator[None]:
        """Creates or continues the folder; no other sweep can use it before the block ends.

        Raises RunFolderError if the name is in use, there is no sweep to resume, the sweep is running, or a
        file that it would write is a link.
        """
        if resume and not self.record.exists():
            raise RunFolderError(f"there is no sweep {self.shown} to resume")
        if resume:
            self._read()  # refuses a record that is not one before anything is written
            check_has_no_links(self._written())
        try:
            self.path.mkdir(mode=PRIVATE, parents=True, exist_ok=resume)
        except FileExistsError:
            raise RunFolderError(
                f"{self.shown} exists: continue the sweep (--resume), or choose another name (--name)"
            ) from None
        self.logs.mkdir(mode=PRIVATE, exist_ok=True)
        lock = os.open(self.path / "sweep.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if try_lock(lock) is False:
                raise RunFolderError(f"the sweep {self.shown} is still running")
            yield
        finally:
            os.close(lock)

    def log_of(self, trial: Trial) -> Path:
        """Returns the path of what the launches of a trial print."""
        return self.logs / f"{trial.name}.log"

    def open_log(self, trial: Trial) -> BinaryIO:
        """Opens the log of a trial to append to it. Raises OSError for a link, or a pipe without a reader."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.fdopen(os.open(self.log_of(trial), flags, 0o600), "ab")

    def _written(self) -> Iterator[Path]:
        """Yields the paths that the sweep and the launches of its trials may write to."""
        yield from (self.path, self.record, self.logs)
        yield from self.path.glob("[0-9]*")
        yield from self.logs.glob("*")

    def write(self, trials: Sequence[Trial], metric: str, *, larger: bool) -> None:
        """Replaces the list of trials."""
        rows = [asdict(trial) for trial in trials]
        write_json(self.record, {"metric": metric, "larger": larger, "trials": rows})

    def trials(self) -> list[Trial]:
        """Returns all trials that the sweep has begun or will begin; none if there is no list yet."""
        return self._read().trials if self.record.exists() else []

    def metric(self) -> str:
        """Returns the metric that trials are compared by."""
        return self._read().metric

    def run_of(self, trial: Trial) -> RunFolder:
        """Returns the folder of a trial's run, which may not exist yet."""
        return RunFolder(self.path / trial.name)

    def states(self) -> list[TrialState]:
        """Returns the state of every trial, with the best one marked."""
        record = self._read()
        states = [self.state_of(trial, record.metric) for trial in record.trials]
        best = best_of([state.score for state in states], larger=record.larger)
        return [
            TrialState(state.trial, state.status, state.step, state.steps, state.score, number == best)
            for number, state in enumerate(states)
        ]

    def table(self) -> dict[str, Any]:
        """Returns the sweep as JSON: its name, metric and goal, and every trial with its values and state."""
        record = self._read()
        rows = [
            {"name": state.trial.name, "values": state.trial.values, "status": state.status}
            | {"step": state.step, "steps": state.steps, "score": state.score, "best": state.is_best}
            for state in self.states()
        ]
        goal = "max" if record.larger else "min"
        return {"name": self.path.name, "metric": record.metric, "goal": goal, "trials": rows}

    def state_of(self, trial: Trial, metric: str) -> TrialState:
        """Returns the state of one trial."""
        run = self.run_of(trial)
        state: dict[str, Any] = run.current_state()
        values = [line[metric] for line in read_metrics(run.metrics) if line.get(metric) is not None]
        score = float(values[-1]) if values and math.isfinite(values[-1]) else None
        return TrialState(
            trial, state.get("status", "waiting"), state.get("step", 0), state.get("steps"), score
        )

    def _read(self) -> _Record:
        """Returns the list of trials. Raises RunFolderError if it cannot be read."""
        try:
            return _Record.model_validate_json(read_bytes(self.record, _MAX_BYTES))
        except FileNotFoundError:
            names = sorted(path.parent.name for path in self.path.parent.glob(f"*/{self.record.name}"))
            known = f"; the sweeps beside it are {', '.join(names)}" if names else ""
            raise RunFolderError(
                f"{self.shown} is not a sweep: it has no {self.record.name}{known}"
            ) from None
        except (OSError, ValidationError) as error:
            raise RunFolderError(f"{display_path(self.record)} does not hold a sweep: {error}") from None
