"""Follows one prompt through a job, from its row to the loss: what `rlrun debug` shows.

    the spec, for one prompt ──▶ the processes of a launch ──▶ stages 1 to 7 of one step ──▶ PromptTrace

Everything is started and computed by the parts that a launch uses; only the batch is smaller. Filters see the
group after the loss, because they could drop it. The run's folder is temporary.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Sample
from rlrun.plugins.validation import needs_of
from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.cluster.host_gpus import check_gpus
from rlrun.runner.cluster.scratch import Scratch, remove_leftovers, scratch_folder
from rlrun.runner.cluster.start import Models
from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.host.background import finish_when_cancelled, in_background
from rlrun.runner.host.failures import run_watched
from rlrun.runner.host.memory import MemoryWatch
from rlrun.runner.job.assembly import RunningJob, start_job
from rlrun.runner.job.batch_sources import filters_of
from rlrun.runner.job.build_job import make_job
from rlrun.runner.job.job import Job, Progress
from rlrun.runner.job.loop import prepare, push_weights, train
from rlrun.runner.job.model_fetch import fetch_models
from rlrun.runner.job.preflight import check_files
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.job.watching import diagnose_engines, memory_of, watch
from rlrun.runner.planning.planned_model import resolve_for_job
from rlrun.runner.records.claim import claim_folder
from rlrun.runner.records.console import Console
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.sections.debug import DebugSpec
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class PromptTrace:
    """One prompt on its way from its row to the loss."""

    group: Group
    """The samples of the prompt, with rewards, advantages and the log-probs of the engine."""
    log_probs: Sequence[NDArray[np.float32]]
    """`[R]` the trainer's log-probs of each sample's response, before it trains."""
    pieces: Mapping[int, bytes]
    """The bytes of each token of the prompt and of the samples."""
    metrics: Mapping[str, float]
    """`train/…` of one optimizer step on the group."""
    seconds: Mapping[str, float]
    """The time of each part of the step."""
    dropped: str | None
    """The filter that would drop the group, with its reason; None if all keep it."""


def trace_prompt(loaded: LoadedSpec, number: int) -> PromptTrace:
    """Follows the prompt with this number in the order of the run, from 0.

    Raises SpecError or LaunchRefused before anything is started if files cannot be used, and JobError if a
    process fails.
    """
    check_files(loaded, online=True)
    check_gpus(loaded)
    models = fetch_models(loaded.spec)
    with ExitStack() as stack:
        runs_dir = Path(stack.enter_context(TemporaryDirectory(prefix="rlrun-debug-")))
        folder = stack.enter_context(claim_folder(runs_dir, loaded.spec.name, resume=False, new=False))
        remove_leftovers()
        scratch = stack.enter_context(scratch_folder())
        return asyncio.run(_run(loaded.spec, models, number, folder, scratch))


async def _run(spec: Spec, models: Models, number: int, folder: RunFolder, scratch: Scratch) -> PromptTrace:
    stack, stop, traces = AsyncExitStack(), StopRequest(), list[PromptTrace]()
    console = Console("debug")
    stack.callback(console.close)
    try:
        own = (await in_background(resolve_for_job, with_one_prompt(spec), models.policy)).spec
        running = await start_job(own, models, folder, scratch, stack, timed=console.timed)
        await in_background(running.inputs.steps.take, number)
        journal = Journal(folder, console)
        stack.callback(journal.close, "done")
        checkpoints = Checkpoints(folder.checkpoints, own.checkpoint.keep)
        job = make_job(own, models.policy, running, journal, checkpoints, stop=stop, folder=folder)

        async def work() -> None:
            traces.append(await _trace(job, running, spec))
            await job.source.close()

        diagnose = partial(diagnose_engines, running)
        memory = MemoryWatch(partial(memory_of, running))
        await run_watched(work(), watch(own, running, stop, console.say, memory), diagnose)
    finally:
        await finish_when_cancelled(stack.aclose())
    return traces[0]


async def _trace(job: Job, running: RunningJob, spec: Spec) -> PromptTrace:
    """Takes the step on the prompt; `spec`: with the filters."""
    await push_weights(job, 0)
    clock = StepClock()
    batch, sequences, packed = await prepare(job, Progress(), clock, compiling=spec.trainer.compile)
    log_probs = await job.policy.log_probs(sequences, packed.policy)
    with clock.part("train"):
        metrics = await train(job, 0, sequences, packed)
    group = batch.groups[0]
    verdict = filters_of(spec).apply(group) if needs_of(spec).rollout else None
    return PromptTrace(
        group,
        log_probs[: len(group.samples)],
        _pieces(group.samples, running.inputs.tokenizer.pieces),
        metrics,
        dict(clock.parts),
        None if verdict is None or verdict.dropped is None else " ".join(verdict.dropped),
    )


def with_one_prompt(spec: Spec) -> Spec:
    """Returns the spec of a job with one step on one prompt, or on as many as its data ranks need."""
    degree = spec.trainer.parallel.data_degree
    batch_size = ceil(degree / spec.rollout.samples_per_prompt)
    rollout = {
        "batch_size": batch_size,
        "oversample": batch_size,
        "mode": "sync",
        "weight_update": "during",
        "partial": False,
        "mask_off_policy": False,
    }
    size = batch_size * spec.rollout.samples_per_prompt if needs_of(spec).rollout else degree
    trainer = {"steps": 1, "epochs": None, "global_batch_size": size, "optimizer_steps": 1}
    return spec.model_copy(
        update={
            "rollout": spec.rollout.model_copy(update=rollout),
            "trainer": spec.trainer.model_copy(update=trainer),
            "critic": spec.critic.model_copy(update={"only_steps": 0}),
            "eval": spec.eval.model_copy(update={"datasets": ()}),
            "filters": (),
            "debug": DebugSpec(),
        }
    )


def _pieces(
    samples: Sequence[Sample], pieces: Callable[[Sequence[int]], Sequence[bytes]]
) -> dict[int, bytes]:
    arrays = [array for sample in samples for array in (sample.prompt.tokens, sample.tokens)]
    tokens = np.unique(np.concatenate(arrays)).tolist()
    return dict(zip(tokens, pieces(tokens), strict=True))
