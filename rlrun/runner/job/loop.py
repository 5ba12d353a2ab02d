"""The job, top to bottom.

      source                    packer         trainer, algorithm     trainer              engines
    ┌──────────────────┐ groups ┌───────┐ steps ┌────────────┐ seqs ┌────────────┐ weights ┌─────────┐
    │1 prompts         │───────▶│5 micro│──────▶│6 log-probs,│─────▶│7 S updates │────────▶│8 version│
    │2 samples         │        │batches│       │  advantages│      └────────────┘         │  + 1    │
    │3 rewards 4 filter│        └───────┘       └────────────┘                             └────┬────┘
    └──────▲───────────┘                                                                        │
           └──────────────── 9 metrics, evaluation, checkpoint ◀────────────────────────────────┘

Where there is no rollout (SFT) the source reads demonstrations; nothing else differs. A run that is asked to
stop gives up 1 to 6, but finishes 7 once it has begun (rlrun.runner.job.stopping).
"""

import asyncio
from collections.abc import Sequence

from rlrun.runner.batches.passes import Passes
from rlrun.runner.batches.sequences import to_sequences
from rlrun.runner.contracts.carriers import TrainSequence, TrainStep
from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.job.job import Evaluation, Job, Progress
from rlrun.runner.job.performance import StepUsage, memory_metrics, train_metrics
from rlrun.runner.job.stopping import Stopped
from rlrun.runner.records.metrics import is_due
from rlrun.runner.rollouts.synchronous import Batch


async def run(job: Job, progress: Progress) -> None:
    """Run the job from where `progress` says to its end. A finished job does nothing.

    A job that is asked to stop saves its last finished step, and returns.
    """
    if progress.step >= job.steps and progress.unevaluated is None:
        return
    progress.place = job.source.snapshot()
    with job.stop.listening():
        try:
            await begin(job, progress)
            first = progress.step
            while progress.step < job.steps:
                await take_step(job, progress, compiling=job.compiles and progress.step == first)
                job.stop.check()
        except Stopped:
            if progress.step:
                await save(job, progress)
        await job.journal.timed("writing the last checkpoint", job.checkpoints.settle())


async def begin(job: Job, progress: Progress) -> None:
    """Give engines and trainer equal weights, and make the evaluation that comes before the first step."""
    await push_weights(job, progress.version)
    if progress.unevaluated is not None:
        evaluation = await evaluate(job, progress) if job.evaluation else {}
        metrics = progress.unevaluated | evaluation
        job.journal.step(progress.step, metrics, [])
        progress.unevaluated = None
    elif progress.step == 0 and job.eval_before_training and job.evaluation:
        job.journal.step(0, await evaluate(job, progress), [])


async def take_step(job: Job, progress: Progress, *, compiling: bool = False) -> None:
    """One step of the data flow. `compiling`: the trainer compiles its layers in it, which takes long."""
    clock, step = StepClock(), progress.step + 1
    preparing = prepare(job, progress, clock, "compiling and training" if compiling else "training")
    batch, sequences, steps = await job.stop.unless_asked(preparing, "preparing", step)
    with clock.part("train"):
        training = asyncio.create_task(update(job, progress.step, sequences, steps))  # 7
        await asyncio.sleep(0)  # the trainer begins, and has the driver's time meanwhile
        metrics = batch.measure()
        updates = await training
    progress.version += 1
    with clock.part("weight_sync"):
        sync_bytes = 0 if job.stop.asked else await push_weights(job, progress.version)  # 8
    progress.step, progress.place = step, job.source.snapshot()
    usage = StepUsage.of(clock, job.trainer.seconds_used(), batch, sequences, sync_bytes, job.gpus)
    progress.seconds += usage.step_seconds
    progress.generated_tokens += usage.generated_tokens
    progress.trained_tokens += usage.trained_tokens
    await conclude(
        job,
        progress,
        batch,
        metrics | updates | usage.metrics() | memory_metrics(job.peak_memory()) | job.engine_counts(),
    )  # 9


async def prepare(
    job: Job, progress: Progress, clock: StepClock, training: str
) -> tuple[Batch, list[TrainSequence], list[TrainStep]]:
    """Everything of a step that leaves the trainer as it is: what it will train on.

    `training` is what the console calls the rest of the step.
    """
    job.journal.doing("rollout")
    with clock.part("rollout"):
        batch = await job.source.next(progress.version)  # 1-4
    if job.turns is not None:
        with clock.part("sleep"):
            await job.turns.to_trainer()
    sequences = to_sequences(batch.groups)
    steps = job.pack(sequences)  # 5
    job.journal.doing(training)
    passes = Passes(
        job.algorithm,
        job.trainer,
        job.recompute_old,
        job.pack_teacher,
        job.pack_critic,
        teacher=job.teacher,
        reference=job.reference,
    )
    return batch, await passes.run(clock, batch.groups, sequences, steps), steps  # 6


async def update(
    job: Job, step: int, sequences: Sequence[TrainSequence], steps: Sequence[TrainStep]
) -> dict[str, float]:
    """The optimizer steps of critic and policy; their metrics."""
    metrics: dict[str, float] = {}
    if job.pack_critic is not None:
        metrics = train_metrics(await job.trainer.train_critic(sequences, job.pack_critic(sequences)))
    if step >= job.critic_only_steps:
        metrics |= train_metrics(await job.trainer.train(sequences, steps))
    if is_due(step, job.reference_interval):
        await job.trainer.update_reference()
    return metrics


async def push_weights(job: Job, version: int) -> int:
    """Give the trainer's weights to the engines; the bytes they take, 0 where there are no engines."""
    if job.engines is None:
        return 0
    job.journal.doing("weights to the engines")
    if job.turns is not None:
        await job.turns.to_trainer()
    manifest = await job.trainer.write_weights(version)
    if job.turns is not None:
        await job.turns.to_update()
    confirmed = await job.engines.update_weights(manifest)
    if job.turns is not None:
        await job.turns.to_engines()
    assert confirmed == version, f"engines serve weights {confirmed}, the trainer pushed {version}"
    return manifest.size


async def conclude(job: Job, progress: Progress, batch: Batch, metrics: dict[str, float]) -> None:
    """Evaluation, metrics, checkpoint: in this order, so that what a checkpoint continues is all there."""
    last = progress.step == job.steps
    if job.evaluation and (last or is_due(progress.step - 1, job.eval_interval)):
        progress.unevaluated = metrics
        try:
            metrics |= await evaluate(job, progress)
        except Stopped:
            job.journal.samples(progress.step, batch.groups)
            raise
        progress.unevaluated = None
    job.journal.step(progress.step, metrics, batch.groups)
    if last or is_due(progress.step - 1, job.checkpoint_interval):
        await save(job, progress)
        if job.turns is not None and not last and not job.stop.asked:
            await push_weights(job, progress.version)  # engines lost theirs when they slept


async def save(job: Job, progress: Progress) -> None:
    """Write a checkpoint of the last finished step, where there is none yet."""
    await job.journal.flush()
    if job.turns is not None:
        await job.turns.to_trainer()
    saving = job.checkpoints.save(job.trainer, progress.step, progress.saved())
    await job.journal.timed(f"saving the checkpoint of step {progress.step}", saving)


async def evaluate(job: Job, progress: Progress) -> dict[str, float]:
    """Evaluate the weights that the engines serve. Stopped where the run is asked to stop meanwhile."""
    assert job.evaluation is not None
    job.journal.doing("evaluation")
    return await job.stop.unless_asked(measured_evaluation(job.evaluation), "evaluating", progress.step)


async def measured_evaluation(evaluation: Evaluation) -> dict[str, float]:
    """Its metrics, and how long it took."""
    clock = StepClock()
    metrics = await evaluation.run()
    return metrics | {"perf/eval_time": clock.total()}
