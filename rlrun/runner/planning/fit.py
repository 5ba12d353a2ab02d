"""Finds what does not fit a job's devices, and says what to change."""

from collections.abc import Iterator, Sequence

from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.memory import EngineMemory, Phase
from rlrun.runner.planning.phases import JobMemory, job_memory
from rlrun.runner.planning.savings import (
    POLICY_PHASES,
    TRAINER_PHASES,
    Settings,
    fitting,
)
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.reading.reference import as_toml

COMFORTABLE = 0.9
"""The share of a device's memory up to which an estimate is trusted: allocators need some on top."""
_MORE_DEVICES = "use larger devices, or more of them"


def fit_warnings(job: PlannedJob, memory: JobMemory, *, advise: bool = True) -> Iterator[str]:
    """Yields a warning for each phase that exceeds its device, for a KV cache that is too small, and for a
    GPU that lacks the trainer's precision. `advise`: at last with what to change so that everything fits.
    """
    tight = [phase for phase in memory.phases if phase.bytes > _room(job, phase)]
    for phase in tight:
        yield _tightness(job, phase)
    is_cache_too_small = memory.engine is not None and not memory.engine.concurrent
    if memory.engine is not None:
        yield from _small_cache(job, memory.engine)
    if advise and (tight or is_cache_too_small):
        yield from _cures(job, tight)
    precision, capability = job.spec.trainer.low_precision, job.device.capability
    if precision is not None and capability is not None and capability < precision.capability:
        needed, found = (".".join(map(str, pair)) for pair in (precision.capability, capability))
        yield (
            f"{precision} needs GPUs of compute capability {needed}, and {job.device.name} has {found}: use "
            "others, or remove trainer.precision"
        )


def _room(job: PlannedJob, phase: Phase) -> float:
    """Returns the bytes up to which a phase is nothing to warn of."""
    return job.device.memory * (COMFORTABLE if phase.name in TRAINER_PHASES else 1.0)


def _tightness(job: PlannedJob, phase: Phase) -> str:
    needed, available = format_bytes(phase.bytes), format_bytes(job.device.memory)
    if phase.bytes <= job.device.memory:
        return (
            f"{phase.name} needs {needed} of the {available} of {job.device.name}, which leaves little for "
            "what is not counted"
        )
    largest = max(phase.parts, key=lambda part: part.bytes)
    return (
        f"{phase.name} needs {needed} and {job.device.name} has {available}; the largest part is "
        f"{largest.name} ({format_bytes(largest.bytes)})"
    )


def _cures(job: PlannedJob, tight: Sequence[Phase]) -> Iterator[str]:
    """Yields the settings with which everything fits, or what to do where no settings are enough."""
    own = [phase for phase in tight if phase.name in POLICY_PHASES]
    for phase in tight:
        if phase not in own:
            yield f"to fit {phase.name}, {_other_cure(phase, job)}"
    if tight and not own:
        return
    # With room for what is not counted, unless that takes offloading which fitting does not take
    roomy, full = (fitting(job, share) for share in (COMFORTABLE, 1.0))
    is_costly = roomy is not None and _offloads(roomy) and full is not None and not _offloads(full)
    if (found := full if is_costly or roomy is None else roomy) is not None:
        smaller, settings = found
        sets = " and ".join(f"{key} = {as_toml(value)}" for key, value in settings.items())
        needs = ", ".join(
            f"{phase.name} {format_bytes(phase.bytes)}"
            for phase in job_memory(smaller).phases
            if phase.name in POLICY_PHASES
        )
        yield f"to fit, set {sets}: then {needs}"
        return
    cures = dict.fromkeys(_other_cure(phase, job) for phase in own) or [_MORE_DEVICES]
    yield f"no setting that saves memory is enough: {'; '.join(cures)}"


def _offloads(found: tuple[PlannedJob, Settings]) -> bool:
    return "trainer.offload" in found[1]


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


def _other_cure(phase: Phase, job: PlannedJob) -> str:
    """Returns what to do about a phase that no setting of the trainer lets fit."""
    part = max(phase.parts, key=lambda part: part.bytes).name
    if part in ("KV cache", "engines (memory kept)"):
        return (
            'lower engine.max_cache_tokens or engine.max_running, or set cluster.placement = "disaggregated"'
        )
    if part.startswith("engines of "):
        return "lower max_cache_tokens or count in these [[engines]], or run them on other hosts"
    if part == "weights":
        return "use larger devices, or SGLang servers that span several (engine.tensor)"
    adapters = "" if job.spec.trainer.lora else ", or train adapters ([trainer.lora])"
    return f"{_MORE_DEVICES}{adapters}; rlrun plan --sweep compares layouts"
