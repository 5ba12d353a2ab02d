"""Refuses a `--resume` that cannot continue its run, before anything is started or changed.

spec and model, against the run's lock ┐
steps asked for, against steps done    ┼──▶ LaunchRefused or RunFolderError, and the run as it was
files of the newest checkpoint         ┘
"""

from pathlib import Path
from typing import Any

from rlrun.converters.folders.checksums import MISSING, find_problems
from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.runner.checkpoints.reading import DamagedCheckpoint, read_driver, recorded_checksums
from rlrun.runner.contracts.errors import LaunchRefused
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.records.lock import check_same_code, check_same_run, check_same_spec, make_lock
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.problems.codes import Code
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.sections.job import Spec

_BYTES_TO_READ = 8 << 30
"""Checkpoints up to this size are read here, which takes seconds. The ranks divide a larger one among them
after they have started.
"""


def check_resume(
    loaded: LoadedSpec, model: ModelFiles | None, folder: RunFolder, before: dict[str, Any]
) -> dict[str, Any]:
    """Returns the lock of a launch that resumes the run whose lock is `before`.

    `model`: None for an evaluation of a model that is served elsewhere.

    Raises LaunchRefused or RunFolderError if the run cannot continue with this spec, model or checkpoint.
    """
    check_same_spec(before, loaded.spec.model_dump(mode="json"))  # before the files are hashed
    check_same_code(before, model)
    check_steps(steps_of(loaded.spec), folder)
    locked = make_lock(loaded, model)
    check_same_run(before, locked)
    try:
        _check_newest(folder)
    except DamagedCheckpoint as error:
        # the message ends with a command to copy, so the code has a line of its own
        raise LaunchRefused(f"{error}\nnothing was changed", error.code) from error
    return locked


def steps_of(spec: Spec) -> int | None:
    """Returns the steps that a run shall have; None: that is not known before its rows are read."""
    return spec.debug.step or make_plan(spec).steps


def check_steps(steps: int | None, folder: RunFolder) -> None:
    """Raises LaunchRefused if the run has done more steps than it shall have; None: that is not known yet."""
    done = max(checkpoints_in(folder.checkpoints), default=0)
    if steps is not None and steps < done:
        raise LaunchRefused(
            f"{folder.shown} has done {done} steps, and the spec asks for {steps}: raise trainer.steps (or "
            "trainer.epochs) to continue, or start another run (--new)",
            Code.RUN_FOLDER,
        )


def is_done(steps: int | None, folder: RunFolder) -> bool:
    """Returns whether the run has ended after all steps that it shall have."""
    state = folder.read_state()
    return state["status"] == "done" and steps is not None and state["step"] == steps


def _check_newest(folder: RunFolder) -> None:
    """Raises DamagedCheckpoint if files of the checkpoint that the run continues from are lost or differ."""
    checkpoints = checkpoints_in(folder.checkpoints)
    if not checkpoints:
        return
    newest = checkpoints[max(checkpoints)]
    digests = recorded_checksums(newest) or {}
    damage = {name: MISSING for name in digests if not (newest / name).exists()}
    size = sum(_size(newest / name) for name in digests)
    readable = digests if size <= _BYTES_TO_READ else {n: d for n, d in digests.items() if "/" not in n}
    if damage := damage | find_problems(newest, readable):
        raise DamagedCheckpoint(newest, damage)
    read_driver(newest)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reported as missing or unreadable
        return 0
