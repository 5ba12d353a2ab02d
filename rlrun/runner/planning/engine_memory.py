"""Counts the memory of a job's engines: the policy's and those of `[[engines]]`."""

from collections.abc import Iterator

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.memory import (
    CACHE_SHARE,
    SGLANG_SHARE,
    EngineMemory,
    Part,
    Phase,
    multiply_phase,
    size_engine,
)
from rlrun.runner.planning.step_time import Case
from rlrun.specs.derived.server_size import gpus_of
from rlrun.specs.sections.engine import EngineSpec


def policy_engine_memory(case: Case, free: int) -> tuple[EngineMemory | None, Phase | None]:
    """Returns the memory of one policy engine, and the phase of all of them on the fullest device.

    `free` is the number of bytes free on that device. Both are None without rollouts.
    """
    if not case.plan.engines:
        return None, None
    count = 1 if case.on_gpu else case.most_on_a_node(case.plan.engines)
    engine = _engine(case, case.model, case.spec.engine, free // count, case.plan.max_sample_tokens)
    return engine, _device_phase(case, engine, case.spec.engine, count)


def named_engine_phases(case: Case) -> Iterator[Phase]:
    """Yields a phase for each section of `[[engines]]` whose model is known, on one device.

    On CPU it counts all engines of the section on the fullest node, each limited to an equal part of the
    host.
    """
    plan = case.plan
    sharers = 1 if case.on_gpu else case.most_on_a_node((*plan.engines, *plan.named_engines)) + 1
    for section in case.spec.engines:
        if (model := case.named_models.get(section.name)) is not None:
            free, longest = case.device.memory // sharers, section.max_length or model.max_positions
            engine = _engine(case, model, section, free, longest)
            engines = [engine for engine in plan.named_engines if engine.name == section.name]
            count = 1 if case.on_gpu else case.most_on_a_node(engines)
            yield Phase(section.name, _device_phase(case, engine, section, count).parts)


def _engine(case: Case, model: Architecture, section: EngineSpec, free: int, longest: int) -> EngineMemory:
    """Returns the memory of an engine whose devices have `free` bytes each."""
    if section.type == "sglang" and case.on_gpu:
        free = min(free, int(case.device.memory * _static_share(section)))
    share = CACHE_SHARE if section.type == "native" else 1.0
    gpus = gpus_of(section) if case.on_gpu else 1
    # A GPU multiplies bfloat16 matrices into float32 results; a CPU casts the head's weights to float32
    # first.
    head_copy = case.spec.trainer.head_dtype == "float32" and not case.on_gpu
    return size_engine(model, section, longest, gpus * free, share, head_copy=head_copy)


def _device_phase(case: Case, engine: EngineMemory, section: EngineSpec, count: int) -> Phase:
    """Returns one device's share of an engine's memory; on CPU, the memory of `count` engines."""
    gpus = gpus_of(section) if case.on_gpu else 1
    if gpus == 1:
        return multiply_phase(engine.phase, count)
    parts = engine.phase.parts
    split = (Part(part.name, -(-part.bytes // gpus), f"({part.how}) / {gpus} GPUs") for part in parts)
    return Phase(engine.phase.name, tuple(split))


def _static_share(section: EngineSpec) -> float:
    """Returns `mem_fraction_static` as the spec passes it to SGLang, or its usual value."""
    fraction = section.sglang.get("mem_fraction_static", SGLANG_SHARE)
    return fraction if isinstance(fraction, float) else SGLANG_SHARE
