"""Where a launch begins: at the beginning, where the run stopped, or where another run's step began."""

import logging
from pathlib import Path
from typing import Any

from rlrun.runner.checkpoints.folder import DRIVER, checkpoint_of, clear_unfinished
from rlrun.runner.checkpoints.reading import DamagedCheckpoint, open_checkpoint
from rlrun.runner.checkpoints.saving import trainer_folder
from rlrun.runner.contracts.interfaces import Trainer
from rlrun.runner.job.job import BatchSource, Checkpoints, Progress
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.sections.debug import DebugSpec

logger = logging.getLogger(__name__)


async def restore_run(
    folder: RunFolder, checkpoints: Checkpoints, source: BatchSource, trainer: Trainer | None
) -> Progress | None:
    """Load the newest complete checkpoint; None where there is none, and the run begins anew."""
    clear_unfinished(folder.checkpoints)
    newest = checkpoints.newest()
    if newest is None:
        logger.warning("there is no checkpoint to go on from: the run begins anew")
        folder.take_back(-1)
        return None
    driver = await open_checkpoint(newest, trainer)
    progress = _progress(newest, driver)
    folder.take_back(progress.step, evaluated=progress.unevaluated is None)
    if trainer is not None:
        await trainer.load(trainer_folder(newest))
    await source.restore(driver["data"])
    logger.info("resumed from %s", newest)
    return progress


async def begin(debug: DebugSpec, trainer: Trainer | None) -> Progress:
    """Load what the step that is to be trained again began with; else begin at the beginning."""
    before = checkpoint_before(debug)
    if before is None:
        return Progress()
    assert trainer is not None, "a step is trained again by a trainer"
    driver = await open_checkpoint(before, trainer)
    await trainer.load(trainer_folder(before))
    logger.info("step %s begins from %s", debug.step, before)
    return _progress(before, driver)


def checkpoint_before(debug: DebugSpec) -> Path | None:
    """The checkpoint that `debug.step` begins from; None where it is the first, or there is none to repeat.

    ValueError where the run has not kept it.
    """
    if debug.step is None or debug.step == 1:
        return None
    assert debug.rollouts is not None
    run = RunFolder(Path(debug.rollouts))
    path = checkpoint_of(run.checkpoints, debug.step - 1)
    if path is None:
        raise ValueError(
            f"debug.step: {run.shown} has no checkpoint of step {debug.step - 1}, which step {debug.step} "
            "began from; checkpoint.interval and checkpoint.keep say which are kept"
        )
    return path


def _progress(checkpoint: Path, driver: dict[str, Any]) -> Progress:
    """Returns how far the run was; DamagedCheckpoint where the driver's part does not say."""
    try:
        if "data" in driver:
            return Progress(**driver["progress"])
    except (KeyError, TypeError):
        pass
    raise DamagedCheckpoint(checkpoint, {DRIVER: "it does not hold a job's state"}) from None
