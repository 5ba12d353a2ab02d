"""A run's `checkpoints/`: which entries are checkpoints of the run, and which leftovers of a crash.

step-N/        a checkpoint: it gets this name when it is complete
.step-N.tmp/   one that is being written
.step-N.old/   one that is being deleted

Everything else belongs to the user: it is neither read nor deleted, and does not get in the way.
"""

import logging
import re
import shutil
from pathlib import Path

from rlrun.specs.paths import display_path
from rlrun.specs.step_names import list_step_paths, step_of

DRIVER = "driver.json"
TRAINER = "trainer"
_CONTENTS = (DRIVER, TRAINER)
_UNFINISHED = re.compile(r"\.(?P<name>.*)\.(tmp|old)")

logger = logging.getLogger(__name__)


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Returns the checkpoints in a folder by step, the oldest first."""
    return {step: path for step, path in list_step_paths(folder).items() if is_checkpoint(path)}


def checkpoint_of(folder: Path, step: int) -> Path | None:
    """Returns the checkpoint of a step; None if there is none."""
    return checkpoints_in(folder).get(step)


def newest_step(folder: Path) -> int | None:
    """Returns the step of the newest checkpoint; None if there is none."""
    return max(checkpoints_in(folder), default=None)


def checkpoints_to_delete(folder: Path, step: int, keep: int) -> list[Path]:
    """Returns the checkpoints to delete after that of `step` was written, so that `keep` remain.

    Links are left out because what they lead to is not the run's to delete, later steps because the run has
    not written them.
    """
    own = [
        path for number, path in checkpoints_in(folder).items() if number <= step and not path.is_symlink()
    ]
    return own[:-keep]


def temporary_path(final: Path) -> Path:
    """Returns where a checkpoint is until it is complete."""
    return final.with_name(f".{final.name}.tmp")


def delete(checkpoint: Path) -> None:
    """Deletes a checkpoint; it loses its name first, because a half-deleted one must not look complete."""
    doomed = checkpoint.with_name(f".{checkpoint.name}.old")
    _remove(doomed)
    checkpoint.rename(doomed)
    _remove(doomed)


def create_empty(temporary: Path) -> None:
    """Makes the folder of a checkpoint that is about to be written; a crash may have left an earlier one."""
    _remove(temporary)
    (temporary / TRAINER).mkdir(parents=True)


def clear_unfinished(folder: Path) -> None:
    """Removes what a crash left half-written or half-deleted."""
    for path in folder.glob(".*"):
        match = _UNFINISHED.fullmatch(path.name)
        if match and step_of(match["name"]) is not None:
            _remove(path)


def move_aside(final: Path) -> None:
    """Renames something that is no checkpoint but has the name that one is to get."""
    if not final.exists() and not final.is_symlink():
        return
    number = 1
    while (aside := final.with_name(f"{final.name}.aside-{number}")).exists() or aside.is_symlink():
        number += 1
    final.rename(aside)
    logger.warning("%s was not a checkpoint of this run: renamed to %s", display_path(final), aside.name)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder holds any part of a checkpoint; a part that is missing makes it a damaged one."""
    return path.is_dir() and any((path / name).exists() for name in _CONTENTS)


def _remove(path: Path) -> None:
    """Removes a folder with what is in it; of a link, only the link."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
