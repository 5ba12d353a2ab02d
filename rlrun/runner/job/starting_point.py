"""Loads the state that a launch starts from: none, the run's last checkpoint, or another run's checkpoint."""

import logging
from pathlib import Path
from typing import Any

from rlrun.plugins.protocols import Algorithm
from rlrun.runner.checkpoints.folder import DRIVER, checkpoint_of, clear_unfinished
from rlrun.runner.checkpoints.reading import DamagedCheckpoint, open_checkpoint
from rlrun.runner.checkpoints.saving import Checkpoints, trainer_folder
from rlrun.runner.contracts.algorithm_state import restore_algorithm
from rlrun.runner.contracts.interfaces import TrainingState
from rlrun.runner.job.job import BatchSource, Progress
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.sections.debug import DebugSpec
from rlrun.specs.sections.job import Spec

logger = logging.getLogger(__name__)


async def restore_run(
    folder: RunFolder,
    checkpoints: Checkpoints,
    source: BatchSource,
    trainer: TrainingState | None = None,
    algorithm: Algorithm | None = None,
) -> Progress | None:
    """Loads the newest complete checkpoint; returns None if there is none, and the run starts from step 0."""
    clear_unfinished(folder.checkpoints)
    newest = checkpoints.newest()
    if newest is None:
        logger.warning("there is no checkpoint to continue from: the run starts from step 0")
        folder.take_back(-1)
        return None
    driver = await open_checkpoint(newest, trainer)
    progress = _progress(newest, driver)
    folder.take_back(progress.step, evaluated=progress.unevaluated is None)
    if trainer is not None:
        await trainer.load(trainer_folder(newest))
    await source.restore(driver["data"])
    if algorithm is not None:
        restore_algorithm(algorithm, driver.get("algorithm", {}))
    logger.info("resumed from %s", newest)
    return progress


async def begin(spec: Spec, trainer: TrainingState, algorithm: Algorithm) -> Progress:
    """Returns the progress of a new run, and loads the weights of `checkpoint.start_from`. If `debug.step`
    repeats another run's step, loads what that step started from.
    """
    debug, start = spec.debug, spec.checkpoint.start_from
    before = checkpoint_before(debug)
    if before is None and start is not None:
        await open_checkpoint(Path(start), trainer)
        await trainer.load_start(trainer_folder(Path(start)), optimizer=spec.checkpoint.start_optimizer)
        logger.info("the run starts with the weights of %s", start)
    if before is None:
        return Progress()
    driver = await open_checkpoint(before, trainer)
    await trainer.load(trainer_folder(before))
    restore_algorithm(algorithm, driver.get("algorithm", {}))
    logger.info("step %s starts from %s", debug.step, before)
    return _progress(before, driver)


def checkpoint_before(debug: DebugSpec) -> Path | None:
    """Returns the checkpoint that `debug.step` starts from; None for the first step, or without `debug.step`.

    Raises ValueError if the other run has not kept it.
    """
    if debug.step is None or debug.step == 1:
        return None
    assert debug.rollouts is not None
    run = RunFolder(Path(debug.rollouts))
    path = checkpoint_of(run.checkpoints, debug.step - 1)
    if path is None:
        raise ValueError(
            f"debug.step: {run.shown} has no checkpoint of step {debug.step - 1}, which step {debug.step} "
            "started from; checkpoint.interval and checkpoint.keep of that run decide which are kept"
        )
    return path


def _progress(checkpoint: Path, driver: dict[str, Any]) -> Progress:
    """Returns how far the run was; DamagedCheckpoint if the driver's part does not contain it."""
    try:
        if "data" in driver:
            return Progress(**driver["progress"])
    except (KeyError, TypeError):
        pass
    raise DamagedCheckpoint(checkpoint, {DRIVER: "it does not hold a job's state"}) from None
