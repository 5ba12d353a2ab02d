"""Saves checkpoints: a checkpoint is complete, or it does not exist.

trainer ──▶ .step-N.tmp/trainer/*   ┐
driver  ──▶ .step-N.tmp/driver.json ┴─▶ checksums.txt ─▶ fsync ─▶ rename to step-N ─▶ delete the oldest

An asynchronous checkpoint is copied to host memory first; all this then happens while training continues.
"""

import asyncio
import logging
import os
import shutil
from asyncio import to_thread
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from rlrun.converters.folders.checksums import CHECKSUMS, Digests, checksum, checksums_text
from rlrun.runner.checkpoints.folder import (
    DRIVER,
    TRAINER,
    checkpoint_of,
    checkpoints_in,
    checkpoints_to_delete,
    create_empty,
    delete,
    move_aside,
    temporary_path,
)
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.interfaces import TrainingState
from rlrun.runner.host.atomic_files import json_bytes, sync_tree, write_bytes, write_text
from rlrun.runner.host.background import cancel_all
from rlrun.specs.paths import display_path
from rlrun.specs.problems.codes import Code
from rlrun.specs.step_names import step_name, step_of

logger = logging.getLogger(__name__)


class Mirror(Protocol):
    """Copies checkpoints to another place while training goes on (rlrun.runner.storage.mirror)."""

    def add(self) -> None:
        """Says that another checkpoint is complete."""

    def holds(self, step: int) -> bool:
        """Whether the checkpoint of a step must stay, because it is being copied."""

    async def finish(self) -> None:
        """Returns when every checkpoint is copied, or given up."""

    def take_metrics(self) -> dict[str, float]:
        """Returns metrics of what was copied since the last call. Raises JobError if the copy is required and
        failed."""


class NoMirror:
    """Copies nothing."""

    def add(self) -> None:
        """Does nothing."""

    def holds(self, step: int) -> bool:
        """Returns False."""
        return False

    async def finish(self) -> None:
        """Returns at once."""

    def take_metrics(self) -> dict[str, float]:
        """Returns nothing."""
        return {}


class Checkpoints:
    """Saves the checkpoints of one run, and keeps the newest `keep` of them, or all, and the best one."""

    def __init__(
        self,
        folder: Path,
        keep: int | Literal["all"],
        *,
        asynchronous: bool = False,
        mirror: Mirror | None = None,
    ) -> None:
        """`asynchronous`: `save` returns when the state is copied; the next `save`, or `wait_until_written`,
        waits for the files. `mirror` copies them elsewhere.
        """
        self.mirror = mirror or NoMirror()
        self._folder = folder
        self._keep = keep
        self._asynchronous = asynchronous
        self._writing: asyncio.Task[None] | None = None
        self._completing: asyncio.Future[None] | None = None

    @property
    def is_mirrored(self) -> bool:
        """Whether checkpoints are copied to another place."""
        return not isinstance(self.mirror, NoMirror)

    async def save(
        self, trainer: TrainingState | None, step: int, driver: dict[str, Any], *, best: int | None = None
    ) -> None:
        """Saves the driver's state, and the trainer's if there is a trainer, as `step-<step>`.

        `best` is the step whose checkpoint is kept although it is old; None: there is none. Raises JobError
        if the disk fails; older checkpoints remain.
        """
        await self.wait_until_written()
        if checkpoint_of(self._folder, step) is not None:
            return
        temporary = temporary_path(self._folder / step_name(step))
        with self._disk_errors_reported(step, temporary):
            await to_thread(create_empty, temporary)
            if trainer is not None and self._asynchronous:
                await trainer.begin_save(temporary / TRAINER)
                self._writing = asyncio.create_task(self._write(trainer, temporary, step, driver, best))
                return
            digests = await trainer.save(temporary / TRAINER) if trainer is not None else {}
            await self._finish(temporary, step, driver, digests, best)

    async def wait_until_written(self) -> None:
        """Returns when the last checkpoint is complete. Raises JobError if the disk failed."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def abandon(self) -> None:
        """Gives up an unfinished checkpoint; returns when this process no longer writes to the folder."""
        if self._writing is not None:
            await cancel_all([self._writing])
            await asyncio.gather(self._writing, return_exceptions=True)
            self._writing = None
        if self._completing is not None:
            await asyncio.wait([self._completing])

    async def _write(
        self, trainer: TrainingState, temporary: Path, step: int, driver: dict[str, Any], best: int | None
    ) -> None:
        """Waits for the trainer's part and completes the checkpoint, while training continues."""
        with self._disk_errors_reported(step, temporary):
            digests = await trainer.saved()
            await self._finish(temporary, step, driver, digests, best)

    async def _finish(
        self, temporary: Path, step: int, driver: dict[str, Any], digests: Digests, best: int | None
    ) -> None:
        """Completes a checkpoint, even if the caller is cancelled: its thread cannot be stopped."""
        final = self._folder / step_name(step)
        self._completing = asyncio.ensure_future(to_thread(_complete, temporary, final, driver, digests))
        await asyncio.shield(self._completing)
        await to_thread(self._prune, step, best)
        self.mirror.add()

    @contextmanager
    def _disk_errors_reported(self, step: int, temporary: Path) -> Iterator[None]:
        """Turns an OSError in the block into a JobError, after deleting the unfinished checkpoint."""
        try:
            yield
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise JobError(self._failure_message(step, error), code=Code.DISK) from error

    def newest(self) -> Path | None:
        """Returns the newest checkpoint; None before the first."""
        return next(reversed(checkpoints_in(self._folder).values()), None)

    def _prune(self, step: int, best: int | None) -> None:
        if self._keep == "all":
            return
        for path in checkpoints_to_delete(self._folder, step, self._keep, best):
            if (number := step_of(path.name)) is not None and self.mirror.holds(number):
                continue
            try:
                delete(path)
            except OSError as error:  # harmless: the new checkpoint is complete
                logger.warning("the old checkpoint %s could not be deleted: %s", display_path(path), error)

    def _failure_message(self, step: int, error: OSError) -> str:
        newest = self.newest()
        kept = (
            f"the last complete one, {display_path(newest)}, is untouched"
            if newest
            else "there is no earlier one"
        )
        return (
            f"the checkpoint of step {step} could not be saved in {display_path(self._folder)}: "
            f"{error.strerror or error}; {kept}. Make room or repair the disk, then continue with --resume"
        )


def trainer_folder(checkpoint: Path) -> Path:
    """Returns the folder with the trainer's part of a checkpoint."""
    return checkpoint / TRAINER


def _complete(temporary: Path, final: Path, driver: dict[str, Any], digests: Digests) -> None:
    """Writes the driver's part and the checksums of all files, and renames the folder.

    The driver's part records that there are checksums, so that a checkpoint that lost them is not mistaken
    for one of an earlier version of rlrun, which wrote none.
    """
    data = json_bytes({CHECKSUMS: True, **driver})
    write_bytes(temporary / DRIVER, data)
    sums = {Path(path).relative_to(temporary).as_posix(): digest for path, digest in digests.items()}
    sums[DRIVER] = checksum(data)
    write_text(temporary / CHECKSUMS, checksums_text(sums))
    sync_tree(temporary)
    move_aside(final)
    temporary.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
