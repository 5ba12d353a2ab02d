"""Knows the files of a run's folder `runs/<name>/`. A launch never overwrites another launch's results.

spec.toml          the spec as written        metrics.jsonl               one line per step
spec.lock.json     the resolved spec          rollouts/step-N.jsonl.zst   samples with rewards
state.json         the run's current state    checkpoints/step-N/         everything to continue from
driver.lock        locked by the driver       superseded/K/               files that the K-th resume set aside
timeline.jsonl     when each part worked      rollouts/dropped-N…, eval-N…   samples that are not trained on
logs/              one file per process       curve.png, model/            written at the end
evaluated.jsonl    samples of an evaluation that is not finished
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, get_args

from rlrun.runner.host.atomic_files import write_bytes, write_json
from rlrun.runner.records.metrics_file import read_lines, split_at_step, warn_of_broken
from rlrun.runner.records.state import is_alive, read_state
from rlrun.specs.paths import display_path
from rlrun.specs.sections.job import Spec
from rlrun.specs.step_names import ROLLOUTS, Kind, list_step_paths

PRIVATE = 0o700
"""Mode of folders: samples, specs and logs may hold what other users of the host must not read."""


class RunFolder:
    """The paths and the state of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "spec.toml"
        self.lock = path / "spec.lock.json"
        self.state = path / "state.json"
        self.driver_lock = path / "driver.lock"
        self.metrics = path / "metrics.jsonl"
        self.logs = path / "logs"
        self.timeline = path / "timeline.jsonl"
        self.profile = path / "profile"
        self.evaluated = path / "evaluated.jsonl"
        self.rollouts = path / "rollouts"
        self.vocabulary = self.rollouts / "vocabulary.jsonl"
        self.checkpoints = path / "checkpoints"
        self.superseded = path / "superseded"
        self.weights = path / "weights"
        self.model = path / "model"
        self.models = path / "models"
        self.unfinished_model = path / ".model.tmp"
        self.curve = path / "curve.png"

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def shown(self) -> str:
        """The path as messages show it, relative to the working directory if it is below it."""
        return display_path(self.path)

    @property
    def argument(self) -> str:
        """The run's name as commands take it, with the folder of runs unless it is the default."""
        runs = display_path(self.path.parent)
        return self.name if runs == "runs" else f"{self.name} --runs-dir {runs}"

    @property
    def was_launched(self) -> bool:
        """Whether a launch has claimed the folder, so that `--resume` can continue it."""
        return self.state.exists() or self.driver_lock.exists()

    def make(self) -> None:
        """Creates the folder and its subfolders, if they do not exist."""
        for folder in (self.path, self.logs, self.rollouts, self.checkpoints):
            folder.mkdir(mode=PRIVATE, exist_ok=True)

    def written(self) -> Iterator[Path]:
        """Yields the paths that a launch may write, move or remove.

        Under `checkpoints/` and `rollouts/` these are only names that rlrun gives: no launch touches a link
        such as `checkpoints/latest`.
        """
        yield from (path for path in vars(self).values() if path != self.path)
        for folder in (self.logs, self.superseded, self.weights):
            with suppress(FileNotFoundError):
                yield from folder.iterdir()
        yield from self.checkpoints.glob(".step-*")
        yield from list_step_paths(self.checkpoints).values()
        yield from list_step_paths(self.models).values()
        yield from self._sample_files(-1)

    def read_state(self) -> dict[str, Any]:
        """Returns the last state written; empty if there is none. Raises RunFolderError for a bad file."""
        return read_state(self.state)

    def current_state(self) -> dict[str, Any]:
        """Returns the state; the status is `died` if it says `running` but the process is gone."""
        state = self.read_state()
        if state.get("status") == "running" and not is_alive(state):
            state["status"] = "died"
        return state

    def write_state(self, state: dict[str, Any]) -> None:
        """Replaces state.json atomically."""
        write_json(self.state, state)

    def take_back(self, step: int, *, evaluated: bool = True) -> None:
        """Sets aside everything written after `step`, so that the run continues as if it had stopped there.

        Without `evaluated` the step's evaluation is not done, and its line of metrics will be written again.
        """
        lines = read_lines(self.metrics)
        kept, superseded = split_at_step(lines, step if evaluated else step - 1)
        later_rollouts = [*self._sample_files(step, "step", "dropped")]
        later_rollouts += self._sample_files(step if evaluated else step - 1, "eval")
        if not superseded and not later_rollouts:
            return
        aside = self.next_aside()
        (aside / "rollouts").mkdir(mode=PRIVATE)
        warn_of_broken(self.metrics, lines, f"moved to {display_path(aside)}/metrics.jsonl")
        write_bytes(aside / "metrics.jsonl", b"".join(line.raw for line in superseded))
        for path in later_rollouts:
            path.rename(aside / "rollouts" / path.name)
        write_bytes(self.metrics, b"".join(line.raw for line in kept))

    def sample_files_until(self, step: int) -> Iterator[Path]:
        """Yields the files of samples of a step and of those before it."""
        for kind in get_args(Kind):
            for number, path in list_step_paths(self.rollouts, ROLLOUTS, kind).items():
                if number <= step:
                    yield path

    def _sample_files(self, step: int, *kinds: Kind) -> Iterator[Path]:
        """Yields the files of samples that were written after `step`, of some kinds or of all."""
        for kind in kinds or get_args(Kind):
            for number, path in list_step_paths(self.rollouts, ROLLOUTS, kind).items():
                if number > step:
                    yield path

    def set_aside(self, path: Path) -> None:
        """Moves a file or folder of an earlier launch to `superseded/`, if it exists."""
        if path.exists():
            path.rename(self.next_aside() / path.name)

    def next_aside(self) -> Path:
        """Creates and returns the next folder of `superseded/`."""
        self.superseded.mkdir(mode=PRIVATE, exist_ok=True)
        for number in count(1):
            with suppress(FileExistsError):
                aside = self.superseded / str(number)
                aside.mkdir(mode=PRIVATE)
                return aside
        raise AssertionError("count() never ends")


def run_folder(spec: Spec) -> RunFolder:
    """Returns the folder that a launch of a spec claims, unless it takes another name."""
    return RunFolder(Path(spec.runs_dir).absolute() / spec.name)
