"""Names the entries of a run's `checkpoints/` folder.

step-N/        a complete checkpoint
.step-N.tmp/   a checkpoint that is being written, or that a crash left unfinished
.step-N.old/   a checkpoint that is being deleted, or that a crash left half-deleted

Everything else belongs to the user: rlrun neither reads nor deletes it.
"""

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rlrun.specs.paths import display_path
from rlrun.specs.step_names import list_step_paths, step_of

DRIVER = "driver.json"
TRAINER = "trainer"
_CONTENTS = (DRIVER, TRAINER)
_UNFINISHED = re.compile(r"\.(?P<name>.*)\.(tmp|old)")

logger = logging.getLogger(__name__)


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Returns the checkpoints in a folder by step, oldest first."""
    return {step: path for step, path in list_step_paths(folder).items() if is_checkpoint(path)}


def checkpoint_of(folder: Path, step: int) -> Path | None:
    """Returns the checkpoint of a step; None if there is none."""
    return checkpoints_in(folder).get(step)


def newest_step(folder: Path) -> int | None:
    """Returns the step of the newest checkpoint; None if there is none."""
    return max(checkpoints_in(folder), default=None)


def checkpoints_to_delete(folder: Path, step: int, keep: int, best: int | None = None) -> list[Path]:
    """Returns the checkpoints to delete after that of `step` was written, so that the newest `keep` of them
    remain, and that of the step `best`.

    Never returns links, whose targets the run does not own, nor checkpoints of later steps, which this run
    did not write.
    """
    own = {
        number: path
        for number, path in checkpoints_in(folder).items()
        if number <= step and not path.is_symlink()
    }
    return [own[number] for number in steps_to_delete(list(own), keep, best)]


def steps_to_delete(steps: Sequence[int], keep: int | Literal["all"], best: int | None = None) -> list[int]:
    """Returns the steps whose checkpoints are not kept; `steps` are in ascending order."""
    return [] if keep == "all" else [step for step in steps[:-keep] if step != best]


def temporary_path(final: Path) -> Path:
    """Returns the path of a checkpoint until it is complete."""
    return final.with_name(f".{final.name}.tmp")


def delete(checkpoint: Path) -> None:
    """Deletes a checkpoint. Renames it first, because a half-deleted checkpoint must not look complete."""
    renamed = checkpoint.with_name(f".{checkpoint.name}.old")
    _remove(renamed)
    checkpoint.rename(renamed)
    _remove(renamed)


def create_empty(temporary: Path) -> None:
    """Creates the folder of a checkpoint that will be written, and removes what a crash left there."""
    _remove(temporary)
    (temporary / TRAINER).mkdir(parents=True)


def clear_unfinished(folder: Path) -> None:
    """Removes checkpoints that a crash left half-written or half-deleted."""
    for path in folder.glob(".*"):
        match = _UNFINISHED.fullmatch(path.name)
        if match and step_of(match["name"]) is not None:
            _remove(path)


def move_aside(final: Path) -> None:
    """Renames an entry that is not a checkpoint but has the name that a checkpoint needs."""
    if not final.exists() and not final.is_symlink():
        return
    number = 1
    while (aside := final.with_name(f"{final.name}.aside-{number}")).exists() or aside.is_symlink():
        number += 1
    final.rename(aside)
    logger.warning("%s was not a checkpoint of this run: renamed to %s", display_path(final), aside.name)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder has any part of a checkpoint; if another part is missing, it is a damaged one."""
    return path.is_dir() and any((path / name).exists() for name in _CONTENTS)


def _remove(path: Path) -> None:
    """Removes a file, a link (but not its target), or a folder with its content."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
