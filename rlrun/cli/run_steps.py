"""Reads `RUN@STEP`, which names a checkpoint of a run."""

import re
from pathlib import Path

from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.runner.records.run_folder import RunFolder

LATEST, BEST = "latest", "best"
_AT_STEP = re.compile(rf"(?P<run>.+)@(?P<step>{LATEST}|{BEST}|\d+)")


def split_step(text: str) -> tuple[str, str | None]:
    """Returns the run and the step of `RUN@STEP`, `RUN@latest` or `RUN@best`; None for a step that is not
    there.
    """
    match = _AT_STEP.fullmatch(text)
    return (match["run"], match["step"]) if match else (text, None)


def run_of(name: str, runs_dir: Path) -> RunFolder | None:
    """Returns the run with a name in `runs_dir`, or in the folder `name`; None if there is none."""
    folders = (runs_dir / name, Path(name))
    return next((RunFolder(path) for path in folders if (path / "spec.lock.json").is_file()), None)


def checkpoint_at(text: str, runs_dir: Path) -> Path:
    """Returns the absolute path of the checkpoint that `RUN@STEP`, `RUN@latest` or `RUN@best` names.

    Raises ValueError if it is not there.
    """
    name, at = split_step(text)
    if at is None:
        raise ValueError(f"--from {text}: write RUN@STEP, such as first@40, RUN@latest or RUN@best")
    run = run_of(name, runs_dir)
    if run is None:
        raise ValueError(f"--from {text}: there is no run {name} in {runs_dir}")
    checkpoints = checkpoints_in(run.checkpoints)
    named = {LATEST: lambda: max(checkpoints, default=0), BEST: lambda: best_step(run)}
    step = named[at]() if at in named else int(at)
    if step not in checkpoints:
        steps = ", ".join(map(str, checkpoints)) or "none"
        raise ValueError(f"--from {text}: {run.shown} has checkpoints of these steps: {steps}")
    return checkpoints[step].absolute()


def best_step(run: RunFolder) -> int:
    """Returns the step of the best evaluation until a run's newest checkpoint. Raises ValueError if there is
    none.
    """
    from rlrun.runner.checkpoints.reading import read_driver  # imports numpy, which `--help` does without

    checkpoints = checkpoints_in(run.checkpoints)
    driver = read_driver(checkpoints[max(checkpoints)]) if checkpoints else {}
    best = driver.get("progress", {}).get("best")
    if best is None:
        raise ValueError(f"{run.shown} has no best checkpoint, which a run with checkpoint.keep_best keeps")
    return int(best["step"])
