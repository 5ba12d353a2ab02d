"""The job, top to bottom.

      source                    packer         trainer, algorithm     trainer              engines
    ┌──────────────────┐ groups ┌───────┐ steps ┌────────────┐ seqs ┌────────────┐ weights ┌─────────┐
    │1 prompts         │───────▶│5 micro│──────▶│6 log-probs,│─────▶│7 S updates │────────▶│8 version│
    │2 samples         │        │batches│       │  advantages│      └────────────┘         │  + 1    │
    │3 rewards 4 filter│        └───────┘       └────────────┘                             └────┬────┘
    └──────▲───────────┘                                                                        │
           └──────────────── 9 metrics, evaluation, checkpoint ◀────────────────────────────────┘

Where there is no rollout (SFT) the source reads demonstrations; nothing else differs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from rlrun.runner.batches.passes import Passes
from rlrun.runner.batches.sequences import to_sequences
from rlrun.runner.carriers import TrainSequence, TrainStep
from rlrun.runner.clock import StepClock
from rlrun.runner.job import Evaluation, Job, Progress
from rlrun.runner.records.metrics import is_due
from rlrun.runner.records.performance import StepUsage, memory_metrics, train_metrics
from rlrun.runner.rollouts.rollout import Batch


async def run(job: Job, progress: Progress) -> None:
    """Run the job from where `progress` says to its end. A finished job does nothing."""
    if progress.step >= job.steps:
        return
    await push_weights(job, progress.version)  # engines and trainer start out equal, whatever was loaded
    if progress.step == 0 and job.eval_before_training and job.evaluation:
        job.journal.step(0, await evaluate(job), [])
    while progress.step < job.steps:
        await take_step(job, progress)
    await job.checkpoints.settle()


async def take_step(job: Job, progress: Progress) -> None:
    """One step of the data flow."""
    clock = StepClock()
    job.journal.doing("rollout")
    with clock.part("rollout"):
        batch = await job.source.next(progress.version)  # 1-4
    if job.turns is not None:
        with clock.part("sleep"):
            await job.turns.to_trainer()
    sequences = to_sequences(batch.groups)
    steps = job.pack(sequences)  # 5
    job.journal.doing("training")
    passes = Passes(
        job.algorithm,
        job.trainer,
        job.recompute_old,
        job.pack_teacher,
        job.pack_critic,
        teacher=job.teacher,
        reference=job.reference,
    )
    sequences = await passes.run(clock, batch.groups, sequences, steps)  # 6
    with clock.part("train"):
        training = asyncio.create_task(update(job, progress.step, sequences, steps))  # 7
        await asyncio.sleep(0)  # the trainer begins, and has the driver's time meanwhile
        metrics = batch.measure()
        updates = await training
    progress.version += 1
    with clock.part("weight_sync"):
        sync_bytes = await push_weights(job, progress.version)  # 8
    progress.step += 1
    usage = StepUsage.of(clock, job.trainer.seconds_used(), batch, sequences, sync_bytes, job.gpus)
    progress.seconds += usage.step_seconds
    progress.generated_tokens += usage.generated_tokens
    progress.trained_tokens += usage.trained_tokens
    await conclude(
        job,
        progress,
        batch,
        metrics | updates | usage.metrics() | memory_metrics(job.peak_memory()),
    )  # 9


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
        metrics |= await evaluate(job)
    job.journal.step(progress.step, metrics, batch.groups)
    if last or is_due(progress.step - 1, job.checkpoint_interval):
        job.journal.doing("saving")
        await job.journal.flush()
        driver = {"progress": asdict(progress), "data": job.source.state()}
        if job.turns is not None:
            await job.turns.to_trainer()
        await job.checkpoints.save(job.trainer, progress.step, driver)
        if job.turns is not None and not last:
            await push_weights(job, progress.version)  # engines lost theirs when they slept


async def evaluate(job: Job) -> dict[str, float]:
    """Evaluate the weights that the engines serve."""
    assert job.evaluation is not None
    job.journal.doing("evaluation")
    return await measured_evaluation(job.evaluation)


async def measured_evaluation(evaluation: Evaluation) -> dict[str, float]:
    """Its metrics, and how long it took."""
    clock = StepClock()
    metrics = await evaluation.run()
    return metrics | {"perf/eval_time": clock.total()}
