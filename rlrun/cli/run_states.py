"""Finds runs on disk, and their checkpoints as `RUN@STEP` names them, for the commands about runs."""

import re
from pathlib import Path

from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.problems.spelling import nearest

LATEST, BEST = "latest", "best"
_AT_STEP = re.compile(rf"(?P<run>.+)@(?P<step>{LATEST}|{BEST}|\d+)")


def list_runs(runs_dir: Path) -> list[RunFolder]:
    """Returns every run that has a state, newest first; runs whose state cannot be read come last."""
    folders = [RunFolder(path.parent) for path in runs_dir.glob("*/state.json")]
    return sorted(folders, key=lambda folder: (_started(folder), folder.name), reverse=True)


def split_folder(runs_dir: Path, text: str) -> tuple[Path, str]:
    """Returns the folder of runs and the name of the run that an argument means.

    It is a name in `runs_dir`, or the path of the run's folder, which messages show.
    """
    path, given = runs_dir / text, Path(text)
    if not _has_state(path) and (len(given.parts) > 1 or _has_state(given)):
        path = given
    if path.name in ("", ".."):
        path = path.resolve()
    return path.parent, path.name


def _has_state(path: Path) -> bool:
    return (path / "state.json").is_file()


def find_run(runs_dir: Path, name: str | None) -> RunFolder:
    """Returns the run with this name or folder, or the newest one. Raises ValueError if it does not exist."""
    if name is not None:
        runs_dir, name = split_folder(runs_dir, name)
    runs = list_runs(runs_dir)
    if not runs:
        raise ValueError(f"{runs_dir} has no runs; name the folder of your runs with --runs-dir")
    if name is None:
        return runs[0]
    names = [run.name for run in runs]
    if name not in names:
        meant = nearest(name, names)
        guess = f"did you mean {meant}? " if meant else ""
        raise ValueError(f"there is no run {name} in {runs_dir}; {guess}runs: {', '.join(sorted(names))}")
    return runs[names.index(name)]


def _started(folder: RunFolder) -> str:
    try:
        return str(folder.read_state().get("started", ""))
    except RunFolderError:
        return ""


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
