"""Runs a job from its start or last checkpoint to its end, and again when a trainer rank dies or hangs.

load ─▶ loop ─▶ export
 ▲        │ a rank dies or hangs
 └────────┴── all ranks are started again (limited number, growing pauses); engines continue with new weights
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from rlrun.runner.checkpoints.saving import Checkpoints, Mirror
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.host.background import in_background
from rlrun.runner.host.failures import ProcessFailure, run_watched
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.host.repeated_crashes import Crashes
from rlrun.runner.job.assembly import RunningJob
from rlrun.runner.job.build_job import make_job, make_rollout_job
from rlrun.runner.job.job import Job, Progress
from rlrun.runner.job.loop import run
from rlrun.runner.job.model_exports import write_final_model
from rlrun.runner.job.rollout_only import generate
from rlrun.runner.job.starting_point import begin, restore_run
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.storage.hub_push import push_model
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.sections.job import Spec

FIRST_PAUSE = 1.0
"""Seconds before the second restart in a row without a finished step; doubles each time."""
MAX_PAUSE = 60.0

logger = logging.getLogger(__name__)


class Attempts:
    """One launch's attempts to bring a run to its end."""

    def __init__(
        self,
        loaded: LoadedSpec,
        model: ModelFiles,
        running: RunningJob,
        folder: RunFolder,
        *,
        journal: Journal,
        say: Callable[[str], None],
        stop: StopRequest,
        mirror: Mirror | None = None,
    ) -> None:
        """`say` shows a line to the user. `mirror` copies the checkpoints."""
        self._loaded = loaded
        self._model = model
        self._running = running
        self._folder = folder
        self._journal = journal
        self._say = say
        self._stop = stop
        self._mirror = mirror
        self._stream_start = running.inputs.steps.state()
        self._restarts_left = loaded.spec.fault_tolerance.trainer_restarts
        self._crashes = Crashes()
        self._pause = 0.0
        self._lost_at: float | None = None
        self._first_step = 0
        self._progress = Progress()

    async def run(self, *, resume: bool) -> None:
        """Returns when the run is done, or has saved because it was asked to stop.

        Raises the failure that ended the run if no restart is left, or if a restart cannot help.
        """
        failure: ProcessFailure | None = None
        while True:
            try:
                if failure is not None:
                    await self._start_again(failure)
                return await self._attempt(resume=resume or failure is not None)
            except ProcessFailure as error:
                if error.has_waited:
                    await self._show_stacks()
                failure = self._check_restartable(error)

    async def _attempt(self, *, resume: bool) -> None:
        """Loads a checkpoint, runs the loop and exports the model; fails when a rank dies or hangs."""
        spec, ranks = self._loaded.spec, self._running.ranks
        self._running.inputs.steps.restore(self._stream_start)
        checkpoints = Checkpoints(
            self._folder.checkpoints,
            spec.checkpoint.keep,
            asynchronous=spec.checkpoint.asynchronous,
            mirror=self._mirror,
        )
        job = make_job(
            spec,
            self._model,
            self._running,
            self._journal,
            checkpoints,
            stop=self._stop,
            folder=self._folder,
        )
        try:
            await run_watched(self._train(job, resume=resume), ranks.watch(), ranks.diagnose)
        finally:
            await checkpoints.abandon()
            await job.source.close()

    async def _train(self, job: Job, *, resume: bool) -> None:
        await job.devices.give_to_trainer()
        loaded = None
        if resume:
            restoring = restore_run(self._folder, job.checkpoints, job.source, job.trainer, job.algorithm)
            loaded = await self._journal.timed("loading the checkpoint", restoring)
        self._progress = loaded or await begin(self._loaded.spec, job.trainer, job.algorithm)
        self._first_step = first = self._progress.step
        if self._lost_at is None:
            if loaded is not None:
                self._say(f"resumed from the checkpoint of step {first}")
            self._journal.begin(first, job.steps, self._loaded.spec.model_dump(mode="json"))
        else:
            self._journal.go_back(first)
            seconds = time.monotonic() - self._lost_at
            self._say(f"the trainer is back after {seconds:.1f} s and continues from step {first}")
        await run(job, self._progress)
        await self._journal.flush()
        if self._loaded.spec.checkpoint.export_hf and not self._stop.asked:
            await job.devices.give_to_trainer()
            writing = write_final_model(job, self._progress, self._folder)
            await self._journal.timed("writing the final model", writing)
            if self._loaded.spec.checkpoint.push is not None:
                pushing = in_background(push_model, self._loaded.spec, self._folder, self._say)
                await self._journal.timed("pushing the final model", pushing)

    async def _show_stacks(self) -> None:
        """Shows where every process of the job is, before they are killed."""
        self._say("where the processes are; their logs have the stacks of all threads:")
        for place in await self._running.cluster.stacks():
            self._say(f"  {place}")

    def _check_restartable(self, failure: ProcessFailure) -> ProcessFailure:
        """Returns the failure if the trainer can be started again, otherwise raises it."""
        budget = self._loaded.spec.fault_tolerance.trainer_restarts
        if not failure.is_transient or not budget or self._stop.asked:
            raise failure
        self._crashes.check(failure, self._progress.step)
        if not self._restarts_left:
            message = f"{failure}; no restart is left (fault_tolerance.trainer_restarts = {budget})"
            raise JobError(message, failure.details, code=failure.code) from failure
        if self._progress.step > self._first_step:
            self._pause = 0.0
        return failure

    async def _start_again(self, failure: ProcessFailure) -> None:
        """Replaces all trainer ranks by new ones, after everything recorded so far is on disk."""
        self._lost_at = time.monotonic()
        self._restarts_left -= 1
        self._say(f"{failure}; starting the trainer again ({self._restarts_left} restarts left)")
        logger.info("%s", failure.details)
        self._journal.doing("starting the trainer again")
        await asyncio.sleep(self._pause)
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), MAX_PAUSE)
        if self._running.pool is not None:
            self._running.pool.forget_weights()
            if sleeps(self._loaded.spec):
                await self._running.pool.sleep()
        await self._journal.flush()
        await self._running.ranks.restart()
        trainer = TrainerGroup(self._running.ranks.processes)
        self._running = replace(self._running, trainer=trainer)


async def roll_out_alone(
    spec: Spec,
    running: RunningJob,
    folder: RunFolder,
    journal: Journal,
    *,
    stop: StopRequest,
    resume: bool,
    mirror: Mirror | None = None,
) -> None:
    """Runs a job that only generates, from its start or its last checkpoint."""
    checkpoints = Checkpoints(folder.checkpoints, spec.checkpoint.keep, mirror=mirror)
    job = make_rollout_job(spec, running, journal, checkpoints, stop=stop)
    try:
        progress = await restore_run(folder, job.checkpoints, job.source) if resume else None
        progress = progress or Progress()
        journal.begin(progress.step, job.steps, spec.model_dump(mode="json"))
        await generate(job, progress)
        await journal.flush()
    finally:
        await job.source.close()
