"""Opens a checkpoint to go on from, and refuses a damaged one.

checksums.txt ─▶ driver: driver.json      ┐
             └─▶ trainer ranks: trainer/* ┴─▶ all as recorded ─▶ the driver's state

A damaged checkpoint is never passed over without a word, because that would lose the steps since the one
before: the error names the file, and the command after which `--resume` takes the checkpoint before.
"""

import json
import logging
from asyncio import to_thread
from pathlib import Path
from shlex import quote
from typing import Any

from rlrun.converters.folders.checksums import CHECKSUMS, MISSING, Digests, find_problems, read_checksums
from rlrun.runner.checkpoints.folder import DRIVER, checkpoints_in
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.interfaces import Trainer
from rlrun.specs.paths import display_path
from rlrun.specs.step_names import step_of

_SHOWN = 3
"""Damaged files that are named."""

logger = logging.getLogger(__name__)


class DamagedCheckpoint(JobError):
    """A checkpoint is not as it was written; the message says which file, and what to do."""

    def __init__(self, checkpoint: Path, wrong: dict[str, str]) -> None:
        """`wrong` says of each damaged file, by its path in the checkpoint, what is wrong with it."""
        named = [f"{display_path(checkpoint / name)} is damaged: {wrong[name]}" for name in sorted(wrong)]
        more = f"; and {len(named) - _SHOWN} more files" if len(named) > _SHOWN else ""
        super().__init__(f"{'; '.join(named[:_SHOWN])}{more}. {_cure(checkpoint)}")


async def open_checkpoint(checkpoint: Path, trainer: Trainer | None) -> dict[str, Any]:
    """Returns the driver's state of a checkpoint, after all files that will be read were compared with their
    checksums. DamagedCheckpoint where one differs.
    """
    digests = await to_thread(_recorded, checkpoint)
    if digests is not None:
        own = {name: digest for name, digest in digests.items() if "/" not in name}
        wrong = await to_thread(find_problems, checkpoint, own)
        if trainer is not None:
            wrong |= await trainer.check(checkpoint, {n: d for n, d in digests.items() if n not in own})
        if wrong:
            raise DamagedCheckpoint(checkpoint, wrong)
    return await to_thread(read_driver, checkpoint)


def read_driver(checkpoint: Path) -> dict[str, Any]:
    """Returns the driver's state, unchecked. DamagedCheckpoint where there is none."""
    return {key: value for key, value in _driver_json(checkpoint).items() if key != CHECKSUMS}


def _driver_json(checkpoint: Path) -> dict[str, Any]:
    try:
        state = json.loads((checkpoint / DRIVER).read_bytes())
    except FileNotFoundError:
        raise DamagedCheckpoint(checkpoint, {DRIVER: MISSING}) from None
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(checkpoint, {DRIVER: f"it is not JSON ({error})"}) from None
    except OSError as error:
        raise DamagedCheckpoint(checkpoint, {DRIVER: f"it cannot be read ({error.strerror})"}) from None
    if not isinstance(state, dict):
        raise DamagedCheckpoint(checkpoint, {DRIVER: "it does not hold a job's state"})
    return state


def _recorded(checkpoint: Path) -> Digests | None:
    """Returns the checksums; None for a checkpoint that was written before there were any."""
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
            "%s has no %s: an earlier rlrun wrote it, and it is loaded unchecked", shown, CHECKSUMS
        )
    elif DRIVER not in digests:
        raise DamagedCheckpoint(checkpoint, {CHECKSUMS: f"it does not list {DRIVER}"})
    return digests


def _cure(checkpoint: Path) -> str:
    """Says how the run goes on without this checkpoint."""
    step = step_of(checkpoint.name)
    earlier = [number for number in checkpoints_in(checkpoint.parent) if step is not None and number < step]
    then = f"goes on from step {earlier[-1]}, the one before" if earlier else "begins the run again"
    source, target = quote(str(checkpoint)), quote(f"{checkpoint}.damaged")
    return (
        f"Copy it again if it exists elsewhere. Without this checkpoint --resume {then}; this moves it away: "
        f"mv {source} {target}"
    )
