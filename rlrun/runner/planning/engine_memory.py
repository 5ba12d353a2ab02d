"""Counts the memory of a job's engines: the policy's and those of `[[engines]]`."""

from collections.abc import Iterator

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.memory import (
    CACHE_BLOCK,
    CACHE_SHARE,
    GPU_PAGE,
    SGLANG_SHARE,
    EngineMemory,
    Part,
    Phase,
    multiply_phase,
    size_engine,
)
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.derived.server_size import gpus_of
from rlrun.specs.sections.engine import EngineSpec


def policy_engine_memory(job: PlannedJob, free: int) -> tuple[EngineMemory | None, Phase | None]:
    """Returns the memory of one policy engine, and the phase of all of them on the fullest device.

    `free` is the number of bytes free on that device. Both are None without rollouts.
    """
    if not job.plan.engines:
        return None, None
    count = 1 if job.on_gpu else job.most_on_a_node(job.plan.engines)
    engine = _engine(job, job.model, job.spec.engine, free // count, job.plan.max_sample_tokens)
    return engine, _device_phase(job, engine, job.spec.engine, count)


def named_engine_phases(job: PlannedJob) -> Iterator[Phase]:
    """Yields a phase for each section of `[[engines]]` whose model is known, on one device.

    On CPU it counts all engines of the section on the fullest node, each limited to an equal part of the
    host.
    """
    plan = job.plan
    sharers = 1 if job.on_gpu else job.most_on_a_node((*plan.engines, *plan.named_engines)) + 1
    for section in job.spec.engines:
        if (model := job.named_models.get(section.name)) is not None:
            free, longest = job.device.memory // sharers, section.max_length or model.max_positions
            engine = _engine(job, model, section, free, longest)
            engines = [engine for engine in plan.named_engines if engine.name == section.name]
            count = 1 if job.on_gpu else job.most_on_a_node(engines)
            yield Phase(section.name, _device_phase(job, engine, section, count).parts)


def _engine(
    job: PlannedJob, model: Architecture, section: EngineSpec, free: int, longest: int
) -> EngineMemory:
    """Returns the memory of an engine whose devices have `free` bytes each."""
    if section.type == "sglang" and job.on_gpu:
        free = min(free, int(job.device.memory * _static_share(section)))
    share = CACHE_SHARE if section.type == "native" else 1.0
    gpus = gpus_of(section) if job.on_gpu else 1
    # A GPU multiplies bfloat16 matrices into float32 results; a CPU casts the head's weights to float32
    # first.
    head_copy = job.spec.trainer.head_dtype == "float32" and not job.on_gpu
    pages = section.type == "native" and job.on_gpu and section.dtype == "bfloat16"
    block = GPU_PAGE if pages else CACHE_BLOCK
    return size_engine(model, section, longest, gpus * free, share, head_copy=head_copy, block=block)


def _device_phase(job: PlannedJob, engine: EngineMemory, section: EngineSpec, count: int) -> Phase:
    """Returns one device's share of an engine's memory; on CPU, the memory of `count` engines."""
    gpus = gpus_of(section) if job.on_gpu else 1
    if gpus == 1:
        return multiply_phase(engine.phase, count)
    parts = engine.phase.parts
    split = (Part(part.name, -(-part.bytes // gpus), f"({part.how}) / {gpus} GPUs") for part in parts)
    return Phase(engine.phase.name, tuple(split))


def _static_share(section: EngineSpec) -> float:
    """Returns `mem_fraction_static` as the spec passes it to SGLang, or its usual value."""
    fraction = section.sglang.get("mem_fraction_static", SGLANG_SHARE)
    return fraction if isinstance(fraction, float) else SGLANG_SHARE
