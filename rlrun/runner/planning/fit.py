"""Finds what does not fit a job's devices, and says what to change."""

from collections.abc import Iterator

from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.memory import EngineMemory, Phase
from rlrun.runner.planning.phases import JobMemory
from rlrun.runner.planning.savings import Settings, phase_bytes, saved
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.reading.reference import as_toml

COMFORTABLE = 0.9
"""The share of a device's memory up to which an estimate is trusted: allocators need some on top."""


_OF_ENGINES = ("weights", "KV cache", "engines (memory kept)")
"""Parts of memory that settings of the trainer do not change."""


def fit_warnings(job: PlannedJob, memory: JobMemory, *, advise: bool = True) -> Iterator[str]:
    """Yields a warning for each phase that exceeds its device, for a KV cache that is too small, and for a
    GPU that lacks the trainer's precision. `advise`: with what to change.
    """
    for phase in memory.phases:
        if phase.bytes > job.device.memory:
            yield _exceeds_device(job, phase, advise=advise)
        elif phase.name == "training" and phase.bytes > COMFORTABLE * job.device.memory:
            yield (
                f"{phase.name} needs {format_bytes(phase.bytes)} of the {format_bytes(job.device.memory)} of "
                f"{job.device.name}, which leaves little for what is not counted"
                + (f": {_saving_cure(job, phase.name)}" if advise else "")
            )
    if memory.engine is not None:
        yield from _small_cache(job, memory.engine)
    precision, capability = job.spec.trainer.low_precision, job.device.capability
    if precision is not None and capability is not None and capability < precision.capability:
        needed, found = (".".join(map(str, pair)) for pair in (precision.capability, capability))
        yield (
            f"{precision} needs GPUs of compute capability {needed}, and {job.device.name} has {found}: use "
            "others, or remove trainer.precision"
        )


def _exceeds_device(job: PlannedJob, phase: Phase, *, advise: bool) -> str:
    largest = max(phase.parts, key=lambda part: part.bytes)
    excess = (
        f"{phase.name} needs {format_bytes(phase.bytes)} and {job.device.name} has "
        f"{format_bytes(job.device.memory)}; the largest part is {largest.name} "
        f"({format_bytes(largest.bytes)})"
    )
    if not advise:
        return excess
    is_of_engines = phase.name == "generation" or largest.name in _OF_ENGINES
    cure = _cure(largest.name, job) if is_of_engines else _saving_cure(job, phase.name)
    return f"{excess}: {cure}"


def _saving_cure(job: PlannedJob, phase: str) -> str:
    """Returns the settings with which a phase of the ranks fits; comfortably, if that takes no offloading
    which fitting does not take.
    """
    roomy, tight = (saved(job, share * job.device.memory, phase=phase) for share in (COMFORTABLE, 1.0))
    is_costly = roomy is not None and _offloads(roomy) and tight is not None and not _offloads(tight)
    if (found := tight if is_costly or roomy is None else roomy) is not None:
        smaller, settings = found
        sets = " and ".join(f"{key} = {as_toml(value)}" for key, value in settings.items())
        return f"set {sets}: {phase} then needs {format_bytes(phase_bytes(smaller, phase))}"
    more = "larger devices, or more of them"
    if job.spec.trainer.lora is None:
        more += ", or train adapters ([trainer.lora])"
    return f"no setting that saves memory is enough: use {more}; rlrun plan --sweep compares layouts"


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


def _cure(part: str, job: PlannedJob) -> str:
    if part in ("KV cache", "engines (memory kept)"):
        return (
            'lower engine.max_cache_tokens or engine.max_running, or set cluster.placement = "disaggregated"'
        )
    if part == "weights":
        return "use larger devices, or split each engine over more of them (engine.tensor)"
    if part.startswith("engines of "):
        return "lower max_cache_tokens or count in these [[engines]], or run them on other hosts"
    if job.spec.cluster.nodes * job.spec.cluster.gpus_per_node <= 1:
        return "use a larger device, or several"
    return "use larger devices, or more of them; rlrun plan --sweep compares layouts"
