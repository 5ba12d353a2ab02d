"""`runs/<name>/`: everything a run leaves behind. Nothing in it is ever overwritten.

spec.toml          as written            metrics.jsonl               a line for each step
spec.lock.json     resolved, pinned      rollouts/step-N.jsonl.zst   samples with rewards
state.json         now                   checkpoints/step-N/         to go on from
driver.lock        held by the driver    superseded/K/               what the K-th resume took back
logs/              of every process      report.html, curve.png, model/   at the end
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from rlrun.runner.host.atomic_files import write_bytes, write_json
from rlrun.runner.records.metrics_file import read_lines, split_after, warn_of_broken
from rlrun.runner.records.state import read_state
from rlrun.specs.paths import display_path
from rlrun.specs.step_names import ROLLOUTS, list_step_paths

PRIVATE = 0o700
"""Mode of folders: samples, specs and logs may hold what other users of the host must not read."""


class RunFolder:
    """The paths of one run, and its state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "spec.toml"
        self.lock = path / "spec.lock.json"
        self.state = path / "state.json"
        self.driver_lock = path / "driver.lock"
        self.metrics = path / "metrics.jsonl"
        self.logs = path / "logs"
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.superseded = path / "superseded"
        self.weights = path / "weights"
        self.model = path / "model"
        self.unfinished_model = path / ".model.tmp"
        self.curve = path / "curve.png"
        self.report = path / "report.html"

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def shown(self) -> str:
        """The path as a person here would write it."""
        return display_path(self.path)

    def make(self) -> None:
        """Create the folder and what lies in it; fine where it exists."""
        for folder in (self.path, self.logs, self.rollouts, self.checkpoints):
            folder.mkdir(mode=PRIVATE, exist_ok=True)

    def written(self) -> Iterator[Path]:
        """Paths in which a launch writes, moves or removes, as far as they exist.

        Under `checkpoints/` and `rollouts/` only those with names of rlrun's: a link `checkpoints/latest` is
        not touched by any launch.
        """
        yield from (path for path in vars(self).values() if path != self.path)
        for folder in (self.logs, self.superseded, self.weights):
            with suppress(FileNotFoundError):
                yield from folder.iterdir()
        yield from self.checkpoints.glob(".step-*")
        yield from list_step_paths(self.checkpoints).values()
        yield from list_step_paths(self.rollouts, ROLLOUTS).values()

    def read_state(self) -> dict[str, Any]:
        """The last state written; empty before the first. RunFolderError for a file that holds none."""
        return read_state(self.state)

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace state.json in one piece."""
        write_json(self.state, state)

    def take_back(self, step: int, *, evaluated: bool = True) -> None:
        """Move what was written after `step` aside, so that the run goes on as if it had stopped there.

        `evaluated`: the step's evaluation is done; its line of metrics is written again where it is not.
        """
        lines = read_lines(self.metrics)
        kept, cut = split_after(lines, step if evaluated else step - 1)
        late = [path for number, path in list_step_paths(self.rollouts, ROLLOUTS).items() if number > step]
        if not cut and not late:
            return
        aside = self.next_aside()
        (aside / "rollouts").mkdir(mode=PRIVATE)
        warn_of_broken(self.metrics, lines, f"moved to {display_path(aside)}/metrics.jsonl")
        write_bytes(aside / "metrics.jsonl", b"".join(line.raw for line in cut))
        for path in late:
            path.rename(aside / "rollouts" / path.name)
        write_bytes(self.metrics, b"".join(line.raw for line in kept))

    def set_aside(self, path: Path) -> None:
        """Move something an earlier launch of this run made out of the way of its successor."""
        if path.exists():
            path.rename(self.next_aside() / path.name)

    def next_aside(self) -> Path:
        """A new folder for what is superseded."""
        self.superseded.mkdir(mode=PRIVATE, exist_ok=True)
        for number in count(1):
            with suppress(FileExistsError):
                aside = self.superseded / str(number)
                aside.mkdir(mode=PRIVATE)
                return aside
        raise AssertionError("there is always a number that is free")
