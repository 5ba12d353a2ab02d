"""Finds what does not fit a job's devices, and says what to change."""

from collections.abc import Iterator
from dataclasses import replace

from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.memory import EngineMemory, Phase
from rlrun.runner.planning.phases import JobMemory, job_memory
from rlrun.runner.planning.step_time import PlannedJob

_RESHARD = 'set trainer.parallel.reshard_after_forward = "always"'


def fit_warnings(job: PlannedJob, memory: JobMemory) -> Iterator[str]:
    """Yields a warning for each phase that exceeds its device, for a KV cache that is too small, and for a
    GPU that lacks the trainer's precision.
    """
    for phase in memory.phases:
        if phase.bytes > job.device.memory:
            yield _exceeds_device(job, phase)
    if memory.engine is not None:
        yield from _small_cache(job, memory.engine)
    precision, capability = job.spec.trainer.low_precision, job.device.capability
    if precision is not None and capability is not None and capability < precision.capability:
        needed, found = (".".join(map(str, pair)) for pair in (precision.capability, capability))
        yield (
            f"{precision} needs GPUs of compute capability {needed}, and {job.device.name} has {found}: use "
            "others, or remove trainer.precision"
        )


def _exceeds_device(job: PlannedJob, phase: Phase) -> str:
    largest = max(phase.parts, key=lambda part: part.bytes)
    cure = _RESHARD if phase.name == "training" and _resharding_suffices(job) else _cure(largest.name, job)
    return (
        f"{phase.name} needs {format_bytes(phase.bytes)} and {job.device.name} has "
        f"{format_bytes(job.device.memory)}; the largest part is {largest.name} "
        f"({format_bytes(largest.bytes)}): {cure}"
    )


def _resharding_suffices(job: PlannedJob) -> bool:
    """Returns whether training fits if FSDP frees layers that it now keeps gathered."""
    trainer = job.spec.trainer
    # FSDP shards parameters over context ranks too
    if not trainer.parallel.keeps_gathered or trainer.parallel.fsdp * trainer.parallel.context == 1:
        return False
    parallel = trainer.parallel.model_copy(update={"reshard_after_forward": "always"})
    spec = job.spec.model_copy(update={"trainer": trainer.model_copy(update={"parallel": parallel})})
    phases = job_memory(replace(job, spec=spec)).phases
    return all(phase.bytes <= job.device.memory for phase in phases if phase.name == "training")


def _small_cache(job: PlannedJob, engine: EngineMemory) -> Iterator[str]:
    if not engine.concurrent:
        yield (
            f"the KV cache has room for {engine.cache_tokens:,} tokens and a sample may have "
            f"{job.plan.max_sample_tokens:,}, so generation cannot start: use larger devices, more of them, "
            "or shorter samples"
        )
    elif engine.cache_tokens < engine.requested_tokens:
        yield (
            f"the KV cache has room for {engine.cache_tokens:,} of the {engine.requested_tokens:,} tokens "
            f"that the spec asks for: an engine decodes {engine.concurrent} samples of full length at a time"
        )


def _cure(part: str, job: PlannedJob) -> str:
    if part in ("activations", "logits"):
        return "lower trainer.max_tokens_per_rank, or raise trainer.parallel.tensor or context"
    if part == "sampling masks":
        return "lower rollout.top_k or trainer.max_tokens_per_rank"
    if part in ("KV cache", "engines (memory kept)"):
        return (
            'lower engine.max_cache_tokens or engine.max_running, or set cluster.placement = "disaggregated"'
        )
    if part == "weights":
        return "use larger devices, or split each engine over more of them (engine.tensor)"
    if part.startswith("engines of "):
        return "lower max_cache_tokens or count in these [[engines]], or run them on other hosts"
    cures = ["raise trainer.parallel.fsdp, or tensor and pipeline"]
    if job.spec.trainer.offload == "none" and job.on_gpu:
        cures.append('set trainer.offload = "optimizer"')
    if job.spec.trainer.dtype != "bfloat16":
        cures.append('set trainer.dtype = "bfloat16"')
    return "; or ".join(cures)
