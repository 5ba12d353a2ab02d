"""Reads `RUN@STEP`, which names a checkpoint of a run."""

import re
from pathlib import Path

from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.runner.records.run_folder import RunFolder

LATEST = "latest"
_AT_STEP = re.compile(rf"(?P<run>.+)@(?P<step>{LATEST}|\d+)")


def split_step(text: str) -> tuple[str, str | None]:
    """Returns the run and the step of `RUN@STEP` or `RUN@latest`; the step is None where there is none."""
    match = _AT_STEP.fullmatch(text)
    return (match["run"], match["step"]) if match else (text, None)


def run_of(name: str, runs_dir: Path) -> RunFolder | None:
    """Returns the run with a name in `runs_dir`, or in the folder `name`; None if there is none."""
    folders = (runs_dir / name, Path(name))
    return next((RunFolder(path) for path in folders if (path / "spec.lock.json").is_file()), None)


def checkpoint_at(text: str, runs_dir: Path) -> Path:
    """Returns the absolute path of the checkpoint that `RUN@STEP` or `RUN@latest` names.

    Raises ValueError if it is not there.
    """
    name, at = split_step(text)
    if at is None:
        raise ValueError(f"--from {text}: write RUN@STEP, such as first@40, or RUN@latest")
    run = run_of(name, runs_dir)
    if run is None:
        raise ValueError(f"--from {text}: there is no run {name} in {runs_dir}")
    checkpoints = checkpoints_in(run.checkpoints)
    step = max(checkpoints, default=0) if at == LATEST else int(at)
    if step not in checkpoints:
        steps = ", ".join(map(str, checkpoints)) or "none"
        raise ValueError(f"--from {text}: {run.shown} has checkpoints of these steps: {steps}")
    return checkpoints[step].absolute()
