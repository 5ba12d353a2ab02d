"""`runs/<name>/`: everything a run leaves behind. Nothing in it is ever overwritten.

spec.toml          as written            metrics.jsonl               a line for each step
spec.lock.json     resolved, pinned      rollouts/step-N.jsonl.zst   samples with rewards
state.json         now                   checkpoints/step-N/         to go on from
logs/              of every process      superseded/K/               what the K-th resume took back
report.html, curve.png, model/           at the end
"""

import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from rlrun.runner.atomic import write_bytes, write_json
from rlrun.runner.errors import RunFolderError
from rlrun.runner.records.metrics_file import read_lines, split_after, warn_of_broken
from rlrun.specs.paths import shown_path
from rlrun.specs.step_names import ROLLOUTS, paths_of_steps

SILENT_SECONDS = 300.0
"""A run on another host that has not said for so long that it is alive is over: its host may be gone."""


class RunFolder:
    """The paths of one run, and its state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "spec.toml"
        self.lock = path / "spec.lock.json"
        self.state = path / "state.json"
        self.metrics = path / "metrics.jsonl"
        self.logs = path / "logs"
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.superseded = path / "superseded"
        self.model = path / "model"
        self.curve = path / "curve.png"
        self.report = path / "report.html"

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def shown(self) -> str:
        """The path as a person here would write it."""
        return shown_path(self.path)

    def make(self) -> None:
        """Create the folder and what lies in it; fine where it exists."""
        for folder in (self.logs, self.rollouts, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)

    def read_state(self) -> dict[str, Any]:
        """The last state written; empty before the first. RunFolderError for a file that holds none."""
        try:
            state = json.loads(self.state.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            state = None
        if not isinstance(state, dict) or "status" not in state:
            raise RunFolderError(f"{shown_path(self.state)} holds no run's state; move it away")
        return state

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace state.json in one piece."""
        write_json(self.state, state)

    def take_back(self, step: int, *, evaluated: bool = True) -> None:
        """Move what was written after `step` aside, so that the run goes on as if it had stopped there.

        `evaluated`: the step's evaluation is done; its line of metrics is written again where it is not.
        """
        lines = read_lines(self.metrics)
        kept, cut = split_after(lines, step if evaluated else step - 1)
        late = [path for number, path in paths_of_steps(self.rollouts, ROLLOUTS).items() if number > step]
        if not cut and not late:
            return
        aside = self.next_aside()
        (aside / "rollouts").mkdir()
        warn_of_broken(self.metrics, lines, f"moved to {shown_path(aside)}/metrics.jsonl")
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
        number = sum(1 for _ in self.superseded.glob("*")) + 1
        while (aside := self.superseded / str(number)).exists():
            number += 1
        aside.mkdir(parents=True)
        return aside


def claim(runs_dir: Path, name: str, *, resume: bool, new: bool) -> RunFolder:
    """The folder for a launch: fresh, or an existing one with `resume`; `new` takes the next free name.

    RunFolderError for a name in use, for nothing to resume, and for a run that is still running.
    """
    folder = RunFolder(runs_dir.absolute() / name)  # other processes have other working directories
    if resume:
        _check_resumable(folder)
    else:
        folder = _make_fresh(folder, new=new)
    folder.make()
    return folder


def owner() -> dict[str, Any]:
    """What identifies this process in state.json, even after its pid is taken by another."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "process_started": psutil.Process().create_time(),
    }


def is_alive(state: dict[str, Any]) -> bool:
    """Whether the process that wrote a state still runs; on another host, whether it said so lately."""
    if state.get("status") != "running":
        return False
    if state["host"] != socket.gethostname():
        silent = datetime.now(UTC) - datetime.fromisoformat(state["updated"])
        return silent.total_seconds() < SILENT_SECONDS
    try:
        started: float = psutil.Process(state["pid"]).create_time()
    except psutil.NoSuchProcess:
        return False
    return abs(started - float(state["process_started"])) < 1.0


def _make_fresh(folder: RunFolder, *, new: bool) -> RunFolder:
    number = 2
    candidate = folder
    while True:
        try:
            candidate.path.mkdir(parents=True)
            return candidate
        except FileExistsError:
            if not new:
                raise RunFolderError(
                    f"the run {folder.shown} exists; go on with it (--resume), start another beside it "
                    "(--new), or choose a name (--name)"
                ) from None
        except OSError as error:
            raise RunFolderError(
                f"the run's folder {candidate.shown} cannot be made ({error.strerror}); runs_dir names where "
                "runs go"
            ) from None
        candidate = RunFolder(folder.path.with_name(f"{folder.name}-{number}"))
        number += 1


def _check_resumable(folder: RunFolder) -> None:
    if not folder.path.is_dir():
        others = sorted(path.name for path in folder.path.parent.glob("*") if (path / "state.json").exists())
        known = f"; there are {', '.join(others)}" if others else ""
        raise RunFolderError(f"there is no run {folder.shown} to resume{known}")
    state = folder.read_state()
    if is_alive(state):
        raise RunFolderError(
            f"the run {folder.shown} is still running (process {state['pid']} on {state['host']}); "
            f"stop it first: rlrun stop {folder.name}"
        )
