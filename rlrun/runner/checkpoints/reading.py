"""Opens the checkpoint that a run continues from, and refuses a damaged one.

checksums.txt ─▶ driver: driver.json      ┐
             └─▶ trainer ranks: trainer/* ┴─▶ all as recorded ─▶ the driver's state

rlrun never skips a damaged checkpoint silently, because the steps since the one before would be lost. The
error names the damaged file, and the command after which `--resume` uses the checkpoint before.
"""

import logging
from asyncio import to_thread
from pathlib import Path
from shlex import quote
from typing import Any

from rlrun.converters.folders.checksums import CHECKSUMS, MISSING, Digests, find_problems, read_checksums
from rlrun.models.foreign_files import open_regular
from rlrun.models.json_files import parse_json
from rlrun.runner.checkpoints.folder import DRIVER, checkpoints_in
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.interfaces import TrainingState
from rlrun.specs.paths import display_path
from rlrun.specs.problems.codes import Code
from rlrun.specs.step_names import step_of

_SHOWN = 3
"""How many damaged files the error names."""

logger = logging.getLogger(__name__)


class DamagedCheckpoint(JobError):
    """A checkpoint's files differ from what was written; the message names a file and says what to do."""

    code = Code.CHECKPOINT

    def __init__(self, checkpoint: Path, damage: dict[str, str]) -> None:
        """`damage` says what is wrong with each damaged file, by its path in the checkpoint."""
        named = [f"{display_path(checkpoint / name)} is damaged: {damage[name]}" for name in sorted(damage)]
        more = f"; and {len(named) - _SHOWN} more files" if len(named) > _SHOWN else ""
        super().__init__(f"{'; '.join(named[:_SHOWN])}{more}. {_cure(checkpoint)}")


async def open_checkpoint(checkpoint: Path, trainer: TrainingState | None) -> dict[str, Any]:
    """Returns the driver's state of a checkpoint, after comparing all files that will be read with their
    checksums. DamagedCheckpoint if a file differs.
    """
    digests = await to_thread(recorded_checksums, checkpoint)
    if digests is not None:
        of_driver = {name: digest for name, digest in digests.items() if "/" not in name}
        damage = await to_thread(find_problems, checkpoint, of_driver)
        if trainer is not None:
            of_trainer = {name: digest for name, digest in digests.items() if name not in of_driver}
            damage |= await trainer.check(checkpoint, of_trainer)
        if damage:
            raise DamagedCheckpoint(checkpoint, damage)
    return await to_thread(read_driver, checkpoint)


def read_driver(checkpoint: Path) -> dict[str, Any]:
    """Returns the driver's state without checking its checksum. DamagedCheckpoint if it cannot be read."""
    return {key: value for key, value in _driver_json(checkpoint).items() if key != CHECKSUMS}


def best_step(checkpoint: Path) -> int | None:
    """Returns the step of the best evaluation until a checkpoint (`checkpoint.keep_best`); None without one.

    DamagedCheckpoint if the driver's state cannot be read.
    """
    try:
        best = read_driver(checkpoint)["progress"]["best"]
        return None if best is None else int(best["step"])
    except (KeyError, TypeError, ValueError):
        return None


def _driver_json(checkpoint: Path) -> dict[str, Any]:
    try:
        with open_regular(checkpoint / DRIVER) as file:
            state = parse_json(file.read())
    except FileNotFoundError:
        raise DamagedCheckpoint(checkpoint, {DRIVER: MISSING}) from None
    except ValueError as error:
        raise DamagedCheckpoint(checkpoint, {DRIVER: f"it is not JSON ({error})"}) from None
    except OSError as error:
        raise DamagedCheckpoint(checkpoint, {DRIVER: f"it cannot be read ({error.strerror})"}) from None
    if not isinstance(state, dict):
        raise DamagedCheckpoint(checkpoint, {DRIVER: "it does not hold a job's state"})
    return state


def recorded_checksums(checkpoint: Path) -> Digests | None:
    """Returns the checksums of a checkpoint; None if the version of rlrun that wrote it recorded none."""
    try:
        digests = read_checksums(checkpoint)
    except OSError as error:
        raise DamagedCheckpoint(checkpoint, {CHECKSUMS: f"it cannot be read ({error.strerror})"}) from None
    except ValueError as error:
        raise DamagedCheckpoint(checkpoint, {CHECKSUMS: str(error)}) from None
    if digests is None:
        if CHECKSUMS in _driver_json(checkpoint):
            raise DamagedCheckpoint(checkpoint, {CHECKSUMS: MISSING})
        shown = display_path(checkpoint)
        logger.warning(
            "%s has no %s, because an earlier rlrun wrote it: it is loaded unchecked", shown, CHECKSUMS
        )
    elif DRIVER not in digests:
        raise DamagedCheckpoint(checkpoint, {CHECKSUMS: f"it does not list {DRIVER}"})
    return digests


def _cure(checkpoint: Path) -> str:
    """Returns the sentences that say how to continue without this checkpoint."""
    step = step_of(checkpoint.name)
    earlier = [number for number in checkpoints_in(checkpoint.parent) if step is not None and number < step]
    then = f"continues from step {earlier[-1]}, the one before" if earlier else "starts the run again"
    source, target = quote(str(checkpoint)), quote(f"{checkpoint}.damaged")
    return (
        f"If you have another copy of it, restore that. Without this checkpoint --resume {then}; to move it "
        f"away: mv {source} {target}"
    )
