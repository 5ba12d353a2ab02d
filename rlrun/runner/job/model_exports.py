"""Writes the policy as Hugging Face folders: the final model, and models while a run trains.

trainer ranks ──▶ .model.tmp ──▶ model, models/step-N
"""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from rlrun.runner.checkpoints.folder import checkpoint_of
from rlrun.runner.checkpoints.reading import open_checkpoint
from rlrun.runner.checkpoints.saving import trainer_folder
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.job.job import Job, Progress
from rlrun.runner.records.metrics import is_due
from rlrun.runner.records.run_folder import PRIVATE, RunFolder
from rlrun.specs.problems.codes import Code
from rlrun.specs.step_names import step_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportsByStep:
    """Writes the model after every `interval` steps to `models/step-N`."""

    trainer: TrainerGroup
    folder: RunFolder
    interval: int

    def is_due(self, step: int) -> bool:
        """Returns whether a model is written after a step."""
        return is_due(step - 1, self.interval)

    async def write(self, step: int) -> None:
        """Writes the model of a step; one that an earlier launch wrote is set aside. JobError as for
        `write_model`.
        """
        self.folder.models.mkdir(mode=PRIVATE, exist_ok=True)
        await write_model(self.trainer, self.folder, self.folder.models / step_name(step))


async def write_final_model(job: Job, progress: Progress, folder: RunFolder) -> None:
    """Writes the model of the last step, or that of the best one (`checkpoint.keep_best`), to `model`.

    Raises DamagedCheckpoint if the best step's checkpoint is damaged, and JobError as `write_model`.
    """
    best = progress.best if job.best_metric is not None else None
    if best is not None and best["step"] != progress.step:
        checkpoint = checkpoint_of(folder.checkpoints, best["step"])
        if checkpoint is None:
            logger.warning(
                "the best checkpoint, of step %d, is gone: the last model is written", best["step"]
            )
        else:
            await open_checkpoint(checkpoint, job.trainer)
            await job.trainer.load(trainer_folder(checkpoint))
            chosen = "the final model is that of step %d, whose %s is the best: %.4g"
            logger.info(chosen, best["step"], best["metric"], best["value"])
    await write_model(job.trainer, folder, folder.model)


async def write_model(trainer: TrainerGroup, folder: RunFolder, target: Path) -> None:
    """Writes the policy to `target` in the run's folder. JobError if the disk fails; `target` is then as it
    was.
    """
    temporary = folder.unfinished_model
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        await trainer.export_hf(temporary)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise JobError(
            f"the model could not be written to {target}: {error.strerror or error}; the checkpoints "
            "are unchanged. Make room and run again with --resume",
            code=Code.DISK,
        ) from error
    folder.set_aside(target)
    temporary.rename(target)
