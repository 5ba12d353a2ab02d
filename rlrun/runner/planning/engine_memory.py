"""What a job's engines take: the policy's, and those of other models."""

from collections.abc import Iterator

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.memory import (
    CACHE_SHARE,
    SGLANG_SHARE,
    EngineMemory,
    Part,
    Phase,
    generating,
    times,
)
from rlrun.runner.planning.step_time import Case
from rlrun.specs.derived.server_size import gpus_of
from rlrun.specs.sections.engine import EngineSpec


def policy_engine(case: Case, left: int) -> tuple[EngineMemory | None, Phase | None]:
    """One engine of the policy, and all of them on one device, which `left` bytes are left of; None without
    rollouts.
    """
    if not case.plan.engines:
        return None, None
    count = 1 if case.on_gpu else case.most_on_a_node(case.plan.engines)
    engine = _engine(case, case.model, case.spec.engine, left // count, case.plan.max_sample_tokens)
    return engine, _on_a_device(case, engine, case.spec.engine, count)


def other_engines(case: Case) -> Iterator[Phase]:
    """Engines of each section of `[[engines]]` whose model is known, on one device: on a CPU, all of them,
    each with an equal part of the host at most.
    """
    plans = case.plan
    sharers = 1 if case.on_gpu else case.most_on_a_node((*plans.engines, *plans.others)) + 1
    for section in case.spec.engines:
        if (model := case.others.get(section.name)) is not None:
            free, longest = case.device.memory // sharers, section.max_length or model.max_positions
            engine = _engine(case, model, section, free, longest)
            own = [one for one in plans.others if one.name == section.name]
            phase = _on_a_device(case, engine, section, 1 if case.on_gpu else case.most_on_a_node(own))
            yield Phase(section.name, phase.parts)


def _engine(case: Case, model: Architecture, section: EngineSpec, free: int, longest: int) -> EngineMemory:
    """An engine on devices that `free` bytes are left of, each."""
    if section.type == "sglang" and case.on_gpu:
        free = min(free, int(case.device.memory * _static_share(section)))
    share = CACHE_SHARE if section.type == "native" else 1.0
    over = gpus_of(section) if case.on_gpu else 1
    # GPUs multiply halves and return float32; on a CPU the head's weights become float32 first.
    copies = case.spec.trainer.head_dtype == "float32" and not case.on_gpu
    return generating(model, section, longest, over * free, share, head_copy=copies)


def _on_a_device(case: Case, engine: EngineMemory, section: EngineSpec, count: int) -> Phase:
    """Of a server over several GPUs a part, of engines of a host all."""
    gpus = gpus_of(section) if case.on_gpu else 1
    if gpus == 1:
        return times(engine.phase, count)
    parts = engine.phase.parts
    split = (Part(part.name, -(-part.bytes // gpus), f"({part.how}) / {gpus} GPUs") for part in parts)
    return Phase(engine.phase.name, tuple(split))


def _static_share(section: EngineSpec) -> float:
    """`mem_fraction_static`, as the spec gives it to SGLang."""
    given = section.sglang.get("mem_fraction_static", SGLANG_SHARE)
    return given if isinstance(given, float) else SGLANG_SHARE
