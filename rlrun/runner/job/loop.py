"""A run, top to bottom: every step goes through the nine stages of docs/architecture.md.

      source                    packer         models, algorithm     trainer              engines
    ┌──────────────────┐ groups ┌───────┐ steps ┌────────────┐ seqs ┌────────────┐ weights ┌─────────┐
    │1 prompts         │───────▶│5 micro│──────▶│6 log-probs,│─────▶│7 S updates │────────▶│8 version│
    │2 rollout         │        │batches│       │  advantages│      └────────────┘         │  + 1    │
    │3 rewards 4 filter│        └───────┘       └────────────┘                             └────┬────┘
    └──────▲───────────┘                                                                        │
           └──────────────── 9 metrics, evaluation, checkpoint ◀────────────────────────────────┘

Without rollouts (SFT, DPO) the source reads demonstrations; nothing else differs. A run that is asked to stop
drops stages 1 to 6, but finishes stage 7 once it has begun (rlrun.runner.job.stopping).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rlrun.runner.batches.model_handle import PackedSteps
from rlrun.runner.batches.packing import ranks_by_prompt
from rlrun.runner.batches.passes import Passes
from rlrun.runner.batches.sequences import (
    images_of,
    to_sequences,
    with_current_tokens,
    with_proximal_shares,
)
from rlrun.runner.contracts.algorithm_state import step_values
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.contracts.update_metrics import algorithm_metrics, combine_updates
from rlrun.runner.job.job import Job, Progress
from rlrun.runner.job.performance import StepUsage
from rlrun.runner.job.step_end import (
    evaluate,
    evaluate_first,
    finish_saving,
    finish_step,
    saved_when_stopped,
)
from rlrun.runner.job.sync_probe import check_pass, check_update
from rlrun.runner.records.metrics import is_due
from rlrun.runner.rollouts.rollout_source import Batch


async def run(job: Job, progress: Progress) -> None:
    """Runs the job from where `progress` is to its end; a finished job only uploads what is not uploaded yet.

    A run that is asked to stop saves its last finished step, and returns.
    """
    if progress.step >= job.steps and progress.unevaluated is None:
        await finish_saving(job)
        return
    async with saved_when_stopped(job, progress):
        await begin(job, progress)
        first = progress.step
        while progress.step < job.steps:
            await take_step(job, progress, compiling=job.compiles and progress.step == first)
            job.stop.check()


async def begin(job: Job, progress: Progress) -> None:
    """Gives the trainer's weights to the engines, then evaluates: at step 0, or after the last step of a run
    that was stopped before its evaluation.
    """
    await push_weights(job, progress.version)
    if progress.unevaluated is None:
        await evaluate_first(job, progress)
        return
    evaluation = await evaluate(job, progress) if job.evaluation else {}
    # Of this step there is a checkpoint: the run was resumed from it.
    progress.remember_best(job.best_metric, evaluation)
    job.journal.step(progress.step, progress.unevaluated | evaluation)
    progress.unevaluated = None


async def take_step(job: Job, progress: Progress, *, compiling: bool = False) -> None:
    """Takes one step. `compiling`: the trainer compiles its layers in it, which takes long."""
    async with job.profiles.recording(progress.step + 1):
        batch, usage, metrics = await train_and_push(job, progress, compiling=compiling)  # 1-8
    await finish_step(job, progress, batch, usage, metrics)  # 9
    if not job.devices.engines_awake and progress.step < job.steps and not job.stop.asked:
        # saving put the engines to sleep, which drops their weights
        await push_weights(job, progress.version)


async def train_and_push(
    job: Job, progress: Progress, *, compiling: bool
) -> tuple[Batch, StepUsage, dict[str, float]]:
    """Takes stages 1 to 8 of a step; returns its batch, what it used, and its metrics."""
    clock = StepClock()
    # stages 1 to 6, which are dropped when the run is asked to stop
    preparation = prepare(job, progress, clock, compiling=compiling)
    batch, sequences, packed = await job.stop.unless_asked(preparation, "preparing", progress.step + 1)
    if job.probe is not None:
        job.probe.choose(sequences)
    with clock.part("train"):
        training = asyncio.create_task(train(job, progress.step, sequences, packed))  # 7
        await asyncio.sleep(0)  # the ranks start training before the driver spends time on metrics
        rollout_metrics = batch.measure()
        train_metrics = await training
    progress.version += 1
    updates = job.updates_engines_after(progress.step + 1) and not job.stop.asked
    with clock.part("weight_sync"):
        sync_bytes = await push_weights(job, progress.version) if updates else 0  # 8
    usage = StepUsage.of(clock, job.trainer.seconds_used(), batch, sequences, sync_bytes, job.gpus)
    ranks = partial(ranks_by_prompt, batch.groups, packed.policy, job.policy.data_ranks)
    return batch, replace(usage, ranks_by_prompt=ranks), rollout_metrics | train_metrics


async def prepare(
    job: Job, progress: Progress, clock: StepClock, *, compiling: bool
) -> tuple[Batch, list[TrainSequence], PackedSteps]:
    """Returns what the step trains on. Changes nothing in the trainer, so that it can be cancelled."""
    job.journal.doing("rollout")
    with clock.part("rollout"):
        batch = await job.source.next(progress.version)  # 1-4
    await job.devices.give_to_trainer(clock)
    job.hooks.on_removed(batch.removed)
    job.hooks.on_samples(batch.groups)
    images = images_of(batch.groups)
    patches = await asyncio.to_thread(job.make_patches, images) if images else {}
    sequences = to_sequences(batch.groups, patches)
    if job.true_on_policy:
        sequences = with_current_tokens(sequences, batch.groups, progress.version)
    if job.interpolate_old:
        sequences = with_proximal_shares(sequences, batch.groups, progress.version)
    critic_steps = None if job.critic is None else job.critic.pack(sequences)
    packed = PackedSteps(job.policy.pack(sequences), critic_steps)  # 5
    job.journal.doing("compiling and training" if compiling else "training")
    passes = Passes(
        job.algorithm,
        job.policy,
        job.reference,
        job.teacher,
        job.critic,
        job.source_teachers,
        job.teacher_prompts,
        recompute_old=job.recompute_old,
        compare=partial(check_pass, progress.step + 1) if job.compares_log_probs else None,
        may_be_stale=job.may_be_stale,
        teacher_tokens=job.teacher_tokens,
        trains_policy=progress.step >= job.critic_only_steps,
    )
    sequences = await passes.run(clock, batch.groups, sequences, packed)  # 6
    return batch, sequences, packed.with_values(step_values(job.algorithm))


async def train(
    job: Job, finished: int, sequences: Sequence[TrainSequence], packed: PackedSteps
) -> dict[str, float]:
    """Takes the optimizer steps of the critic, then those of the policy, after `finished` steps of the run;
    returns their metrics.
    """
    metrics: dict[str, float] = {}
    if job.critic is not None:
        metrics = combine_updates(await job.critic.train(sequences, packed.critic))
    if finished >= job.critic_only_steps:
        updates = await job.policy.train(sequences, packed.policy)
        if job.compares_log_probs:
            check_update(updates, finished + 1)
        metrics |= combine_updates(updates) | algorithm_metrics(step_values(job.algorithm))
        if job.averages_teacher:
            await job.trainer.update_teacher()
    if is_due(finished, job.reference_interval):
        await job.trainer.update_reference()
    return metrics


async def push_weights(job: Job, version: int) -> int:
    """Makes all engines serve the trainer's weights; returns the bytes of the update, 0 without engines.

    An engine that is lost meanwhile gets the update when it is started again. Raises EngineError if an engine
    fails that nobody starts again, JobError if the probe finds engines that generate with something else.
    """
    if job.engines is None:
        return 0
    job.journal.doing("weights to the engines")
    await job.devices.give_to_trainer()
    if job.probe is not None:
        await job.probe.score_with_trainer()
    update = await job.trainer.write_weights(version)  # rlrun.runner.weights.writer, on every rank
    await job.devices.make_room_for_weights()
    confirmed = await job.engines.update_weights(update)  # rlrun.runner.weights.delivery
    await job.devices.give_to_engines()
    assert confirmed == version, f"engines serve weights {confirmed}, the trainer pushed {version}"
    if job.probe is not None:
        await job.probe.check(version)
    return update.size
