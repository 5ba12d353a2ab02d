"""Steps 1 to 4 of the loop and its last, without the trainer between them: samples are made and saved.

source ──▶ Batch ──▶ metrics, rollouts/step-N, checkpoint of the place in the data
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.job.job import BatchSource, Checkpoints, Evaluation, Journal, Progress
from rlrun.runner.job.loop import measured_evaluation
from rlrun.runner.job.performance import StepUsage
from rlrun.runner.job.stopping import Stopped, StopRequest
from rlrun.runner.records.metrics import is_due


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
    stop: StopRequest = field(default_factory=StopRequest)
    engine_counts: Callable[[], dict[str, float]] = dict
    """Metrics that count what engines did since the last call."""


async def generate(job: RolloutJob, progress: Progress) -> None:
    """Generate from where `progress` says to the end.

    A job that is asked to stop saves its last finished step, and returns.
    """
    progress.place = job.source.snapshot()
    with job.stop.listening():
        try:
            if progress.step == 0 and job.evaluation and job.steps:
                job.journal.doing("evaluation")
                evaluation = measured_evaluation(job.evaluation)
                job.journal.step(0, await job.stop.unless_asked(evaluation, "evaluating", 0), [])
            while progress.step < job.steps:
                await _step(job, progress)
        except Stopped:
            if progress.step:
                await _save(job, progress)


async def _step(job: RolloutJob, progress: Progress) -> None:
    clock = StepClock()
    job.journal.doing("rollout")
    with clock.part("rollout"):
        work = job.source.next(progress.version)
        batch = await job.stop.unless_asked(work, "preparing", progress.step + 1)
    metrics = batch.measure()
    progress.step, progress.place = progress.step + 1, job.source.snapshot()
    usage = StepUsage.of(clock, 0.0, batch, [], 0)
    progress.seconds += usage.step_seconds
    progress.generated_tokens += usage.generated_tokens
    job.journal.step(progress.step, metrics | usage.metrics() | job.engine_counts(), batch.groups)
    if progress.step == job.steps or is_due(progress.step - 1, job.checkpoint_interval):
        await _save(job, progress)


async def _save(job: RolloutJob, progress: Progress) -> None:
    await job.journal.flush()
    saving = job.checkpoints.save(None, progress.step, progress.saved())
    await job.journal.timed(f"saving the checkpoint of step {progress.step}", saving)
