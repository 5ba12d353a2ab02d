"""Mirrors the checkpoints of a run to an object store while training goes on.

    save ─▶ checkpoints/step-N ─▶ add(N) ─▶ upload the newest missing step ─▶ prune the bucket ─▶ again

Steps are uploaded newest first, and the bucket keeps those that the rule of the local ones keeps
(`checkpoint.keep`, `checkpoint.keep_best`). A failed upload costs nothing but the copy.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal
from uuid import uuid4

from rlrun.models.object_store import StorageError
from rlrun.runner.checkpoints.folder import checkpoints_in, steps_to_delete
from rlrun.runner.checkpoints.reading import DamagedCheckpoint, best_step
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.storage.bucket import Bucket, run_bucket
from rlrun.runner.storage.manifest import (
    DATA,
    SAMPLES,
    StoredFile,
    manifest_key,
    read_manifest,
    stored_steps,
)
from rlrun.runner.storage.upload import PART_BYTES, LostOwnership, StepUpload, take_ownership
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.job import Spec
from rlrun.specs.step_names import step_name

UPLOADS = 4
"""How often the upload of a step is begun, each time with the tries of its requests."""
_FIRST_PAUSE = 5.0
"""Seconds after a failed upload, unless another step is saved meanwhile; doubles with each failure
of the step."""

logger = logging.getLogger(__name__)


class BucketMirror:
    """Uploads one launch's checkpoints, and deletes those that are no longer kept."""

    def __init__(
        self,
        bucket: Bucket,
        folder: RunFolder,
        keep: int | Literal["all"],
        *,
        required: bool = False,
        part_bytes: int = PART_BYTES,
        first_pause: float = _FIRST_PAUSE,
    ) -> None:
        """`required`: a step that cannot be uploaded ends the job."""
        self._bucket = bucket
        self._folder = folder
        self._keep = keep
        self._required = required
        self._part_bytes = part_bytes
        self._first_pause = first_pause
        self._attempt = uuid4().hex[:12]
        self._saved = asyncio.Event()
        self._idle = asyncio.Event()
        self._has_ended = False
        self._failures: dict[int, int] = {}
        self._failure: str | None = None
        self._uploading: int | None = None
        self._stored: Mapping[str, StoredFile] = {}
        self._trusts_stored = False
        self._in_bucket: list[int] | None = None
        self._seconds = self._bytes = 0.0
        self._reported_failures = 0

    def add(self) -> None:
        """Says that another checkpoint is complete."""
        if self._has_ended:
            return
        self._idle.clear()
        self._saved.set()

    def holds(self, step: int) -> bool:
        """Whether the local checkpoint of a step must stay, because it is being uploaded."""
        return step == self._uploading

    async def finish(self) -> None:
        """Returns when every kept checkpoint is in the bucket, or has failed as often as it may.

        Raises JobError if a step failed and the spec requires the mirror.
        """
        await self._idle.wait()
        self._raise_required()

    def _raise_required(self) -> None:
        if self._required and self._failure is not None:
            raise JobError(
                f"{self._failure}. Repair the access to the bucket and continue with --resume, or set "
                "checkpoint.mirror_required = false",
                code=Code.DISK,
            )

    def summary(self) -> str | None:
        """Returns a line about the newest step in the bucket; None if it has none of this run."""
        newest = max(self._in_bucket or [], default=None)
        return None if newest is None else f"step {newest} is in {self._bucket.url}"

    def take_metrics(self) -> dict[str, float]:
        """Returns what was uploaded since the last call. Raises JobError as `finish` does."""
        self._raise_required()
        newest = max(checkpoints_in(self._folder.checkpoints), default=0)
        failures = self._bucket.failed_requests
        metrics = {
            "perf/upload_time": self._seconds,
            "perf/upload_bytes": self._bytes,
            "perf/upload_failures": float(failures - self._reported_failures),
            "perf/upload_lag": float(newest - max(self._in_bucket or [0])),
        }
        self._seconds = self._bytes = 0.0
        self._reported_failures = failures
        return metrics

    async def run(self) -> None:
        """Uploads until it is cancelled, or until a later launch continues the run."""
        try:
            await self._work()
        except LostOwnership as error:
            self._give_up(f"{self._bucket.url}: {error}; this launch does not upload any more")
        except Exception as error:  # a boundary: training does not end because of its copy
            logger.info("the mirror failed", exc_info=error)
            self._give_up(f"{self._bucket.url}: unexpected {type(error).__name__}: {error}")
        finally:
            self._has_ended = True
            self._idle.set()

    async def _work(self) -> None:
        while True:
            self._saved.clear()
            self._uploading = step = self._next_step(self._in_bucket or [])
            if step is None:
                self._idle.set()
                await self._saved.wait()
                continue
            try:
                if self._in_bucket is None:
                    self._in_bucket = await self._begin()
                else:
                    await self._upload(step, self._in_bucket)
            except (StorageError, DamagedCheckpoint, ValueError, OSError) as error:
                if self._is_given_up(step, error):
                    continue
                pause = self._first_pause * 2 ** (self._failures[step] - 1)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._saved.wait(), pause)

    async def _begin(self) -> list[int]:
        """Takes the bucket over from an earlier launch, and deletes its unfinished uploads."""
        await take_ownership(self._bucket, self._attempt)
        steps = await stored_steps(self._bucket)
        try:
            manifests = [await read_manifest(self._bucket, step) for step in steps]
        except ValueError as error:  # without it, what it names would look unfinished
            logger.warning("%s; nothing unfinished is deleted there", error)
            return steps
        named = {key for manifest in manifests for key in manifest.keys}
        objects = [*await self._bucket.list(DATA), *await self._bucket.list(SAMPLES)]
        await self._bucket.delete(key for key in objects if key not in named)
        if manifests:
            self._stored = manifests[-1].samples
        return steps

    def _next_step(self, in_bucket: list[int]) -> int | None:
        """Returns the newest local step that the bucket should have and does not have; None without one."""
        local = checkpoints_in(self._folder.checkpoints)
        dropped = self._dropped(sorted({*local, *in_bucket}))
        missing = [step for step in local if step not in in_bucket and step not in dropped]
        return max((step for step in missing if self._failures.get(step, 0) < UPLOADS), default=None)

    def _dropped(self, steps: list[int]) -> list[int]:
        """Returns those of the steps that are not kept."""
        if self._keep == "all":
            return []
        newest = next(reversed(checkpoints_in(self._folder.checkpoints).values()), None)
        best = None if newest is None else best_step(newest)
        return steps_to_delete(steps, self._keep, best)

    async def _upload(self, step: int, in_bucket: list[int]) -> None:
        started, sent = time.monotonic(), self._bucket.sent_bytes
        upload = StepUpload(
            self._bucket,
            self._folder,
            self._attempt,
            step,
            self._stored,
            trusts_stored=self._trusts_stored,
            part_bytes=self._part_bytes,
        )
        manifest = await upload.run()
        in_bucket.append(step)
        in_bucket.sort()
        if step == in_bucket[-1]:
            self._stored, self._trusts_stored = manifest.samples, True
        self._seconds += time.monotonic() - started
        self._bytes += self._bucket.sent_bytes - sent
        self._failure = None
        logger.info("step %d is in %s", step, self._bucket.url)
        await self._prune(in_bucket)

    async def _prune(self, in_bucket: list[int]) -> None:
        """Deletes the steps that are not kept: their manifests first, so that no half step looks whole."""
        try:
            for step in self._dropped(in_bucket):
                await self._bucket.delete([manifest_key(step)])
                in_bucket.remove(step)
                await self._bucket.delete(await self._bucket.list(f"{DATA}{step_name(step)}/"))
        except StorageError as error:  # the new step is there
            logger.warning("%s; what is not kept any more stays there until a later launch", error)

    def _is_given_up(self, step: int, error: Exception) -> bool:
        """Reports a failed upload; returns whether it has failed as often as it may."""
        self._failures[step] = self._failures.get(step, 0) + 1
        if self._failures[step] < UPLOADS:
            logger.warning("step %d could not be uploaded: %s; it is tried again", step, error)
            return False
        self._give_up(f"step {step} was not uploaded: {error}")
        return True

    def _give_up(self, message: str) -> None:
        self._failure = message
        logger.warning("%s; the local checkpoints are complete", message)


def open_mirror(spec: Spec, folder: RunFolder) -> BucketMirror | None:
    """Returns what mirrors the checkpoints of a run; None where the spec names no mirror."""
    bucket, checkpoint = run_bucket(spec, folder.name), spec.checkpoint
    if bucket is None:
        return None
    return BucketMirror(bucket, folder, checkpoint.keep, required=checkpoint.mirror_required)


@asynccontextmanager
async def uploading(mirror: BucketMirror | None, seconds: float) -> AsyncIterator[None]:
    """Uploads while the block runs. If the block fails, waits up to `seconds` for what is being uploaded."""
    if mirror is None:
        yield
        return
    task = asyncio.create_task(mirror.run())
    try:
        yield
    except Exception:
        with contextlib.suppress(JobError, TimeoutError):
            await asyncio.wait_for(mirror.finish(), seconds)
        raise
    finally:
        task.cancel()
        await asyncio.wait([task])
