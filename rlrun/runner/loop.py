"""The job, top to bottom.

      source                    algorithm          packer           trainer              engines
    ┌──────────────────┐ groups ┌──────────┐ seqs ┌───────┐ steps ┌────────────┐ weights ┌─────────┐
    │1 prompts         │───────▶│5 advan-  │─────▶│6 micro│──────▶│7 log-probs,│────────▶│8 version│
    │2 samples         │        │  tages   │      │batches│       │  S updates │         │  + 1    │
    │3 rewards 4 filter│        └──────────┘      └───────┘       └────────────┘         └────┬────┘
    └──────▲───────────┘                                                                      │
           └──────────────── 9 metrics, evaluation, checkpoint ◀──────────────────────────────┘

Where there is no rollout (SFT) the source reads demonstrations; nothing else differs.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rlrun.plugins.types import Group
from rlrun.runner.carriers import TrainSequence, TrainStep
from rlrun.runner.clock import StepClock
from rlrun.runner.interfaces import Advantages, Engines, Trainer
from rlrun.runner.metrics import is_due
from rlrun.runner.packing import all_micro_batches
from rlrun.runner.performance import StepUsage, memory_metrics, train_metrics
from rlrun.runner.rollout import Batch
from rlrun.runner.sequences import to_sequences, with_old_log_probs, with_reference


class BatchSource(Protocol):
    """Where a step's groups come from: the policy's rollouts, or demonstrations."""

    async def next(self, version: int) -> Batch:
        """The next batch; engines serve weights `version`."""

    def state(self) -> dict[str, Any]:
        """The place in the data after the batches so far, as JSON values."""

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""

    async def close(self) -> None:
        """Stop reading ahead."""


class Evaluation(Protocol):
    """Held-out datasets (rlrun.runner.evaluate.Evaluator)."""

    async def run(self) -> dict[str, float]:
        """`eval/…` metrics of the weights that the engines serve."""


class Checkpoints(Protocol):
    """Where training state is kept (rlrun.runner.checkpoint.Checkpoints)."""

    async def save(self, trainer: Trainer, step: int, driver: dict[str, Any]) -> None:
        """Keep everything, or nothing."""

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""


class Journal(Protocol):
    """Whoever wants to know (rlrun.runner.journal.Journal)."""

    def step(self, step: int, metrics: dict[str, float], groups: Sequence[Group]) -> None:
        """Metrics of a finished step and the groups it trained on."""

    def doing(self, what: str) -> None:
        """What the job is busy with now."""

    async def flush(self) -> None:
        """Return when every step so far is on disk."""


@dataclass(slots=True)
class Progress:
    """How far the job is; part of every checkpoint."""

    step: int = 0
    """Steps done."""
    version: int = 0
    """Weight version that the engines serve; + 1 on every push after a step."""
    seconds: float = 0.0
    """Time spent in steps, over all launches of this run."""
    generated_tokens: int = 0
    trained_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """The parts of a run, put together by rlrun.runner.launch or by a test."""

    steps: int
    source: BatchSource
    algorithm: Advantages
    pack: Callable[[Sequence[TrainSequence]], list[TrainStep]]
    trainer: Trainer
    journal: Journal
    checkpoints: Checkpoints
    engines: Engines | None = None
    """None where neither rollout nor evaluation needs any."""
    evaluation: Evaluation | None = None
    recompute_old: bool = True
    """`old_log_probs = "trainer"`; costs a pass only where a step takes several optimizer steps."""
    eval_before_training: bool = True
    eval_interval: int | None = None
    checkpoint_interval: int | None = None
    peak_memory: Callable[[], Mapping[str, float]] = dict
    """Bytes by role."""


async def run(job: Job, progress: Progress) -> None:
    """Run the job from where `progress` says to its end. A finished job does nothing."""
    if progress.step >= job.steps:
        return
    await push_weights(job, progress.version)  # engines and trainer start out equal, whatever was loaded
    if progress.step == 0 and job.eval_before_training and job.evaluation:
        job.journal.step(0, await evaluate(job), [])
    while progress.step < job.steps:
        await take_step(job, progress)


async def take_step(job: Job, progress: Progress) -> None:
    """One step of the data flow."""
    clock = StepClock()
    job.journal.doing("rollout")
    with clock.part("rollout"):
        batch = await job.source.next(progress.version)  # 1-4
    sequences = to_sequences(batch.groups, job.algorithm.advantages(batch.groups))  # 5
    steps = job.pack(sequences)  # 6
    job.journal.doing("training")
    sequences = await add_log_probs(job, clock, sequences, steps)  # 7
    with clock.part("train"):
        training = asyncio.create_task(job.trainer.train(sequences, steps))
        await asyncio.sleep(0)  # the trainer begins, and has the driver's time meanwhile
        metrics = batch.measure()
        updates = await training
    progress.version += 1
    with clock.part("weight_sync"):
        sync_bytes = await push_weights(job, progress.version)  # 8
    progress.step += 1
    usage = StepUsage.of(clock, job.trainer.seconds_used(), batch.generated_tokens, sequences, sync_bytes)
    progress.seconds += usage.step_seconds
    progress.generated_tokens += usage.generated_tokens
    progress.trained_tokens += usage.trained_tokens
    await conclude(
        job,
        progress,
        batch,
        metrics | train_metrics(updates) | usage.metrics() | memory_metrics(job.peak_memory()),
    )  # 9


async def add_log_probs(
    job: Job, clock: StepClock, sequences: list[TrainSequence], steps: Sequence[TrainStep]
) -> list[TrainSequence]:
    """The passes before the first update, as far as the algorithm needs any.

    With one optimizer step the policy's own log-probs are the old ones, and no pass is spent on them.
    """
    needs = job.algorithm.needs
    if needs.old_log_probs and job.recompute_old and len(steps) > 1:
        with clock.part("log_prob"):
            found = await job.trainer.log_probs(sequences, all_micro_batches(steps))
        sequences = with_old_log_probs(sequences, found)
    if needs.reference:
        with clock.part("reference"):
            found = await job.trainer.log_probs(sequences, all_micro_batches(steps), reference=True)
        sequences = with_reference(sequences, found)
    return sequences


async def push_weights(job: Job, version: int) -> int:
    """Give the trainer's weights to the engines; the bytes they take, 0 where there are no engines."""
    if job.engines is None:
        return 0
    manifest = await job.trainer.write_weights(version)
    confirmed = await job.engines.update_weights(manifest)
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
        await job.checkpoints.save(job.trainer, progress.step, driver)


async def evaluate(job: Job) -> dict[str, float]:
    """Evaluate the weights that the engines serve."""
    assert job.evaluation is not None
    job.journal.doing("evaluation")
    clock = StepClock()
    metrics = await job.evaluation.run()
    return metrics | {"perf/eval_time": clock.total()}
