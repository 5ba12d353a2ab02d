"""Stages 1 to 4 and 9 of the loop, without the trainer between them: samples are generated and saved.

source ──▶ Batch ──▶ metrics, rollouts/step-N, checkpoint of the position in the data
"""

from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.job.job import Progress, RolloutJob
from rlrun.runner.job.performance import StepUsage
from rlrun.runner.job.step_end import evaluate_first, finish_step, saved_when_stopped


async def generate(job: RolloutJob, progress: Progress) -> None:
    """Generates from where `progress` is to the end.

    A run that is asked to stop saves its last finished step, and returns.
    """
    async with saved_when_stopped(job, progress):
        if job.steps:
            await evaluate_first(job, progress)
        while progress.step < job.steps:
            await _take_step(job, progress)


async def _take_step(job: RolloutJob, progress: Progress) -> None:
    clock = StepClock()
    job.journal.doing("rollout")
    with clock.part("rollout"):
        rollout = job.source.next(progress.version)
        batch = await job.stop.unless_asked(rollout, "preparing", progress.step + 1)
    metrics = batch.measure()
    usage = StepUsage.of(clock, 0.0, batch, [], 0)
    await finish_step(job, progress, batch, usage, metrics)
