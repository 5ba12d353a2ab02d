"""Steps 1 to 4 of the loop and its last, without the trainer between them: samples are made and saved.

source ──▶ Batch ──▶ metrics, rollouts/step-N, checkpoint of the place in the data
"""

from dataclasses import asdict, dataclass

from rlrun.runner.clock import StepClock
from rlrun.runner.job import BatchSource, Checkpoints, Evaluation, Journal, Progress
from rlrun.runner.loop import measured_evaluation
from rlrun.runner.records.metrics import is_due
from rlrun.runner.records.performance import StepUsage


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """The parts of a run that generates alone; the engines serve the model as it was loaded."""

    steps: int
    source: BatchSource
    journal: Journal
    checkpoints: Checkpoints
    evaluation: Evaluation | None = None
    """Runs once, before the first step: the weights stay what they are."""
    checkpoint_interval: int | None = None


async def generate(job: RolloutJob, progress: Progress) -> None:
    """Generate from where `progress` says to the end."""
    if progress.step == 0 and job.evaluation and job.steps:
        job.journal.doing("evaluation")
        job.journal.step(0, await measured_evaluation(job.evaluation), [])
    while progress.step < job.steps:
        await _step(job, progress)


async def _step(job: RolloutJob, progress: Progress) -> None:
    clock = StepClock()
    job.journal.doing("rollout")
    with clock.part("rollout"):
        batch = await job.source.next(progress.version)
    metrics = batch.measure()
    progress.step += 1
    usage = StepUsage.of(clock, 0.0, batch, [], 0)
    progress.seconds += usage.step_seconds
    progress.generated_tokens += usage.generated_tokens
    job.journal.step(progress.step, metrics | usage.metrics(), batch.groups)
    if progress.step == job.steps or is_due(progress.step - 1, job.checkpoint_interval):
        job.journal.doing("saving")
        await job.journal.flush()
        driver = {"progress": asdict(progress), "data": job.source.state()}
        await job.checkpoints.save(None, progress.step, driver)
