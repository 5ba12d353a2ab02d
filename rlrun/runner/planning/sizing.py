"""Estimates whether a job fits its devices, what it writes to disk and how long it takes.

    spec, plan, architecture, device -> Sizing: memory by phase, warnings, disk, time

Nothing is started.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.runner.planning.engine_memory import host_copy_bytes
from rlrun.runner.planning.fit import fit_warnings
from rlrun.runner.planning.memory import EngineMemory, Phase
from rlrun.runner.planning.phases import job_memory
from rlrun.runner.planning.rank_memory import reference_bytes, staged_bytes, teacher_copy_bytes
from rlrun.runner.planning.step_time import Estimate, PlannedJob, estimate
from rlrun.runner.planning.storage import export_bytes, offloaded_bytes, top_token_bytes
from rlrun.runner.planning.sync_time import held_bytes, sync_bytes, sync_time


@dataclass(frozen=True, slots=True)
class Sizing:
    """The memory, disk space and time that a job needs."""

    phases: tuple[Phase, ...]
    """On the fullest device; on CPU, of all processes of the fullest node together."""
    engine: EngineMemory | None
    """None without rollouts."""
    reference: int
    """Bytes of host memory per rank for the reference policy."""
    teacher: int
    """Bytes of host memory per rank for a teacher that is the policy with other weights."""
    top_tokens: int
    """Bytes of the driver's host memory for the teacher's most probable tokens of a step, if every response
    is as long as it may be."""
    offloaded: int
    """Bytes of host memory per rank for the training state that `trainer.offload` keeps there."""
    staged: int
    """Bytes of host memory per rank for a checkpoint that is written while training continues."""
    host_copy: int
    """Bytes of host memory for the frozen model of engines that get adapters alone: of each server that
    sleeps, or of all native engines of a node."""
    held: int
    """Bytes of host memory in which the first rank keeps the weights that engines have
    (`engine.weight_delta`)."""
    checkpoints: int | None
    """Number of checkpoints that are on disk at once. None: all are kept, and the number of steps is not
    known."""
    disk: int
    """Bytes of these checkpoints (of one, if their number is not known), and of the exported model."""
    sync_bytes: int
    """Bytes of a weight update."""
    estimate: Estimate
    warnings: tuple[str, ...]


def size_job(job: PlannedJob, *, advise: bool = True) -> Sizing:
    """Returns what a job needs on devices like `job.device`; on CPU a device is a whole host.

    `advise`: warnings also say which settings would let the job fit, which takes several times as long.
    """
    memory = job_memory(job)
    return Sizing(
        phases=memory.phases,
        engine=memory.engine,
        reference=reference_bytes(job),
        teacher=teacher_copy_bytes(job),
        top_tokens=_top_tokens(job),
        offloaded=offloaded_bytes(job.model, job.spec.trainer),
        staged=staged_bytes(job),
        host_copy=host_copy_bytes(job),
        held=held_bytes(job),
        checkpoints=_checkpoints_on_disk(job),
        disk=_disk_bytes(job),
        sync_bytes=sync_bytes(job)[0],
        estimate=estimate(job, running_samples(job, memory.engine), sync_time(job).seconds),
        warnings=tuple(fit_warnings(job, memory, advise=advise)),
    )


def _top_tokens(job: PlannedJob) -> int:
    samples, response = job.plan.batch.samples, job.spec.rollout.max_response_tokens
    return top_token_bytes(samples, response, job.needs.compared_tokens)


def running_samples(job: PlannedJob, engine: EngineMemory | None) -> int:
    """Returns how many samples of mean length an engine decodes at a time."""
    if engine is None:
        return 0
    mean = max(job.load.prompt + job.load.response, 1)
    return max(1, min(job.spec.engine.max_running, int(engine.cache_tokens / mean)))


def _checkpoints_on_disk(job: PlannedJob) -> int | None:
    checkpoint, steps = job.spec.checkpoint, job.plan.steps
    best = checkpoint.keep_best is not None
    if checkpoint.interval is None and not best:
        return 1
    # every evaluation may be the best one so far; the last step has a checkpoint too
    intervals = [checkpoint.interval, job.spec.eval.interval if best else None]
    written = None if steps is None else _due_steps(steps, intervals)
    if checkpoint.keep == "all":
        return written
    # the oldest checkpoint is removed only when a newer one is complete
    kept = checkpoint.keep + 1 + best
    return kept if written is None else min(kept, written)


def _due_steps(steps: int, intervals: Sequence[int | None]) -> int:
    """Returns how many of the steps are due by one of the intervals, or are the last."""
    due = [range(interval, steps, interval) for interval in intervals if interval is not None]
    return len(set().union(*due)) + 1


def _disk_bytes(job: PlannedJob) -> int:
    spec, count = job.spec, _checkpoints_on_disk(job)
    interval, steps = spec.checkpoint.export_interval, job.plan.steps
    # models of a run whose number of steps is not known are counted once
    models = (0 if interval is None else max(1, (steps or 0) // interval)) + spec.checkpoint.export_hf
    written = (1 if count is None else count) * job.checkpoint_bytes
    return written + models * export_bytes(job.model)
