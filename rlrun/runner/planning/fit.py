"""What of a job does not fit its devices, and what to do about it."""

from collections.abc import Iterator

from rlrun.runner.planning.hardware import gib
from rlrun.runner.planning.memory import EngineMemory, Phase
from rlrun.runner.planning.phases import Memory
from rlrun.runner.planning.step_time import Case


def misfits(case: Case, memory: Memory) -> Iterator[str]:
    """One sentence for each phase that needs too much, and for a cache that is too small."""
    for phase in memory.phases:
        if phase.bytes > case.device.memory:
            yield _too_much(case, phase)
    if memory.engine is not None:
        yield from _small_cache(case, memory.engine)


def _too_much(case: Case, phase: Phase) -> str:
    largest = max(phase.parts, key=lambda part: part.bytes)
    return (
        f"{phase.name} needs {gib(phase.bytes)} and {case.device.name} has {gib(case.device.memory)}: most "
        f"of it is {largest.name} ({gib(largest.bytes)}); {_cure(largest.name, case)}"
    )


def _small_cache(case: Case, engine: EngineMemory) -> Iterator[str]:
    room = f"the KV cache has room for {engine.cache_tokens:,}"
    if not engine.concurrent:
        yield (
            f"{room} tokens and a sample may have {case.plan.max_sample_tokens:,}: generation would not "
            "start; use larger devices, more of them, or shorter samples"
        )
    elif engine.cache_tokens < engine.wanted_tokens:
        yield (
            f"{room} of the {engine.wanted_tokens:,} tokens asked for: {engine.concurrent} samples of full "
            "length at a time"
        )


def _cure(name: str, case: Case) -> str:
    if name in ("activations", "logits"):
        return "lower trainer.max_tokens_per_rank, or raise trainer.parallel.tensor or context"
    if name == "sampling masks":
        return "lower rollout.top_k or trainer.max_tokens_per_rank"
    if name in ("KV cache", "engines, which keep their memory"):
        return "lower engine.max_cache_tokens or engine.max_running, or place engines apart"
    if name == "weights":
        return "use larger devices, or servers over more of them (engine.tensor): one holds the whole model"
    if name.startswith("engines of "):
        return "lower max_cache_tokens or count of these [[engines]], or have them run elsewhere"
    return "raise trainer.parallel.fsdp, or tensor and pipeline" + (
        "" if case.spec.trainer.dtype == "bfloat16" else '; or dtype = "bfloat16"'
    )
