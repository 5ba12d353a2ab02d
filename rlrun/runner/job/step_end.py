"""Stage 9, the end of a step, for runs with a trainer and for runs that only generate.

    progress ─▶ evaluation ─▶ metrics and samples ─▶ checkpoint ─▶ exported model

The evaluation comes before the checkpoint, so that the checkpoint of a step has everything that a resumed run
continues from. The evaluation of a run that is asked to stop is left to the resumed run.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.job.job import Progress, RolloutJob
from rlrun.runner.job.performance import StepUsage, memory_metrics, reward_wait
from rlrun.runner.job.stopping import Stopped
from rlrun.runner.rollouts.rollout_source import Batch


@asynccontextmanager
async def saved_when_stopped(job: RolloutJob, progress: Progress) -> AsyncIterator[None]:
    """Runs the steps of a run. When the run is asked to stop, the block ends and the last step is saved.

    Returns when the last checkpoint is written, and uploaded where it has a mirror.
    """
    progress.remember(job)
    with job.stop.listening():
        try:
            yield
        except Stopped:
            if progress.step:
                await save(job, progress)
        await finish_saving(job)


async def finish_saving(job: RolloutJob) -> None:
    """Returns when the last checkpoint is written, and uploaded where it has a mirror."""
    await job.journal.timed("writing the last checkpoint", job.checkpoints.wait_until_written())
    if job.checkpoints.is_mirrored:
        await job.journal.timed("uploading the last checkpoint", job.checkpoints.mirror.finish())


async def finish_step(
    job: RolloutJob, progress: Progress, batch: Batch, usage: StepUsage, metrics: dict[str, float]
) -> None:
    """Counts a step as finished, evaluates if that is due, records the metrics, and saves if that is due."""
    progress.add_step(usage, job)
    spans, moments = [*usage.spans, *job.processes.take_spans()], job.processes.take_moments()
    metrics = metrics | usage.metrics() | reward_wait(spans)
    metrics |= memory_metrics(job.processes.peak_memory()) | job.processes.take_counts()
    metrics |= job.checkpoints.mirror.take_metrics()
    job.journal.samples(progress.step, batch.groups, batch.removed)
    clock, is_best = StepClock(), False
    if job.evaluation and job.evaluates_after(progress.step):
        progress.unevaluated = metrics
        with clock.part("evaluation"):
            evaluated = await evaluate(job, progress)
        metrics |= evaluated
        is_best = progress.remember_best(job.best_metric, evaluated)
        progress.unevaluated = None
    job.journal.step(progress.step, metrics)
    if is_best or job.saves_after(progress.step):
        with clock.part("checkpoint"):
            await save(job, progress)
    if job.models is not None and job.models.is_due(progress.step):
        with clock.part("export"):
            await job.devices.give_to_trainer()
            writing = job.models.write(progress.step)
            await job.journal.timed(f"writing the model of step {progress.step}", writing)
    spans += [*clock.spans, *job.processes.take_spans()]
    job.journal.timeline(progress.step, usage.started, spans)
    await job.profiles.write_timeline(progress.step, spans, moments, usage.ranks_by_prompt)


async def evaluate_first(job: RolloutJob, progress: Progress) -> None:
    """Evaluates the weights that the run begins with, unless it is resumed or does not evaluate them."""
    if progress.step == 0 and job.eval_before_training and job.evaluation:
        job.journal.step(0, await evaluate(job, progress))


async def evaluate(job: RolloutJob, progress: Progress) -> dict[str, float]:
    """Returns the metrics of the weights that the engines serve, and records the samples.

    Raises Stopped if the run is asked to stop.
    """
    assert job.evaluation is not None
    job.journal.doing("evaluation")
    clock = StepClock()
    result = await job.stop.unless_asked(job.evaluation.run(), "evaluating", progress.step)
    job.journal.evaluation(progress.step, result.groups)
    job.processes.take_moments()  # an evaluation numbers its prompts from 0, as training does
    return result.metrics | {"perf/eval_time": clock.total()}


async def save(job: RolloutJob, progress: Progress) -> None:
    """Writes a checkpoint of the last finished step, unless that step has one."""
    await job.journal.flush()
    await job.devices.give_to_trainer()
    best = None if progress.best is None else progress.best["step"]
    saving = job.checkpoints.save(job.trainer, progress.step, progress.driver_state(), best=best)
    await job.journal.timed(f"saving the checkpoint of step {progress.step}", saving)
