"""Reads `RUN@STEP`, which names a checkpoint of a run."""

import re
from pathlib import Path

from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.runner.records.run_folder import RunFolder

AT_STEP = re.compile(r"(?P<run>.+)@(?P<step>latest|\d+)")


def run_of(name: str, runs_dir: Path) -> RunFolder | None:
    """Returns the run with a name in `runs_dir`, or in the folder `name`; None if there is none."""
    folders = (runs_dir / name, Path(name))
    return next((RunFolder(path) for path in folders if (path / "spec.lock.json").is_file()), None)


def checkpoint_at(text: str, runs_dir: Path) -> Path:
    """Returns the absolute path of the checkpoint that `RUN@STEP` or `RUN@latest` names.

    Raises ValueError if it is not there.
    """
    match = AT_STEP.fullmatch(text)
    if match is None:
        raise ValueError(f"--from {text}: write RUN@STEP, such as first@40, or RUN@latest")
    run = run_of(match["run"], runs_dir)
    if run is None:
        raise ValueError(f"--from {text}: there is no run {match['run']} in {runs_dir}")
    checkpoints = checkpoints_in(run.checkpoints)
    step = max(checkpoints, default=0) if match["step"] == "latest" else int(match["step"])
    if step not in checkpoints:
        steps = ", ".join(map(str, checkpoints)) or "none"
        raise ValueError(f"--from {text}: {run.shown} has checkpoints of these steps: {steps}")
    return checkpoints[step].absolute()
