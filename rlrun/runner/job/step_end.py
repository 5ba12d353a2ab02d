"""Stage 9, the end of a step, for runs with a trainer and for runs that only generate.

    progress ─▶ evaluation ─▶ metrics and samples ─▶ checkpoint

The evaluation comes first and the checkpoint last, so that the checkpoint of a step has everything that a
resumed run continues from. The evaluation of a run that is asked to stop is left to the resumed run.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.job.job import Evaluation, Progress, RolloutJob
from rlrun.runner.job.performance import StepUsage, memory_metrics
from rlrun.runner.job.stopping import Stopped
from rlrun.runner.rollouts.rollout_source import Batch


@asynccontextmanager
async def saved_when_stopped(job: RolloutJob, progress: Progress) -> AsyncIterator[None]:
    """Runs the steps of a run. When the run is asked to stop, the block ends and the last step is saved."""
    progress.source_state = job.source.snapshot()
    with job.stop.listening():
        try:
            yield
        except Stopped:
            if progress.step:
                await save(job, progress)


async def finish_step(
    job: RolloutJob, progress: Progress, batch: Batch, usage: StepUsage, metrics: dict[str, float]
) -> None:
    """Counts a step as finished, evaluates if that is due, records the metrics, and saves if that is due."""
    progress.add_step(usage, job.source.snapshot())
    metrics = metrics | usage.metrics() | memory_metrics(job.peak_memory()) | job.engine_counts()
    if job.evaluation and job.evaluates_after(progress.step):
        progress.unevaluated = metrics
        try:
            metrics |= await evaluate(job, progress)
        except Stopped:
            job.journal.samples(progress.step, batch.groups)
            raise
        progress.unevaluated = None
    job.journal.step(progress.step, metrics, batch.groups)
    if job.saves_after(progress.step):
        await save(job, progress)


async def evaluate_first(job: RolloutJob, progress: Progress) -> None:
    """Evaluates the weights that the run begins with, unless it is resumed or does not evaluate them."""
    if progress.step == 0 and job.eval_before_training and job.evaluation:
        job.journal.step(0, await evaluate(job, progress), [])


async def evaluate(job: RolloutJob, progress: Progress) -> dict[str, float]:
    """Returns the metrics of the weights that the engines serve.

    Raises Stopped if the run is asked to stop.
    """
    assert job.evaluation is not None
    job.journal.doing("evaluation")
    return await job.stop.unless_asked(_timed_evaluation(job.evaluation), "evaluating", progress.step)


async def _timed_evaluation(evaluation: Evaluation) -> dict[str, float]:
    clock = StepClock()
    metrics = await evaluation.run()
    return metrics | {"perf/eval_time": clock.total()}


async def save(job: RolloutJob, progress: Progress) -> None:
    """Writes a checkpoint of the last finished step, unless that step has one."""
    await job.journal.flush()
    await job.devices.give_to_trainer()
    saving = job.checkpoints.save(job.trainer, progress.step, progress.driver_state())
    await job.journal.timed(f"saving the checkpoint of step {progress.step}", saving)
