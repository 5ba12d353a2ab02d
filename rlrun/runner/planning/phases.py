"""What is in a device's memory at the same time, phase by phase: trainer, engines, other models' engines.

GPUs    colocated, in turns   training │ weight update │ generation, each beside what the others leave there
        colocated             training and generation, each beside what the other keeps
        apart                 training on some, generation on others; other models' engines on theirs
CPU     everything on one host, ranks and engines as often as its fullest node has them
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.runner.planning.engine_memory import other_engines, policy_engine
from rlrun.runner.planning.memory import CONTEXT, EngineMemory, Part, Phase
from rlrun.runner.planning.rank_memory import Ranks, ranks_memory
from rlrun.runner.planning.step_time import Case
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.weight_sync import bucket_bytes, buckets_on_gpus


@dataclass(frozen=True, slots=True)
class Memory:
    """A job's memory, on the fullest device of each kind; on CPU, on the fullest node."""

    phases: tuple[Phase, ...]
    engine: EngineMemory | None
    """None without rollouts."""


def job_memory(case: Case) -> Memory:
    """All phases of a job. Engines of other models have GPUs, and so phases, of their own; a host they share
    with everybody.
    """
    ranks, others = ranks_memory(case), list(other_engines(case))
    apart = others if case.on_gpu else []
    beside = (
        [] if case.on_gpu else [Part(f"engines of {one.name}", one.bytes, "all of them") for one in others]
    )
    shared = case.plan.colocated or not case.on_gpu
    left = case.device.memory - sum(part.bytes for part in beside)
    if shared:
        left -= ranks.kept if sleeps(case.spec) else ranks.waiting
    engine, rollout = policy_engine(case, left)
    phases = [ranks.training] if rollout is None else [ranks.training, rollout]
    if rollout is not None and shared:
        phases = (_in_turns if sleeps(case.spec) else _together)(case, ranks, rollout)
    phases = [Phase(phase.name, (*phase.parts, *beside)) for phase in phases]
    return Memory((*phases, *apart), engine)


def _in_turns(case: Case, ranks: Ranks, rollout: Phase) -> list[Phase]:
    """Where engines sleep while the trainer works, and it leaves while they do; both are there for an update
    of the weights.
    """
    context = CONTEXT if case.on_gpu else 0
    weights = (part for part in rollout.parts if part.name == "weights")
    update = Phase("weight update", (*weights, *_buckets(case)))
    return [
        _beside(ranks.training, "engines, asleep", context),
        _beside(update, "trainer", ranks.waiting + context),
        _beside(rollout, "trainer, which has left" if case.on_gpu else "trainer", ranks.kept + context),
    ]


def _together(case: Case, ranks: Ranks, rollout: Phase) -> list[Phase]:
    """Where everybody keeps what he has."""
    buckets = tuple(_buckets(case))
    return [
        _beside(
            Phase("training", (*ranks.training.parts, *buckets)),
            "engines, which keep their memory",
            rollout.bytes,
        ),
        _beside(
            Phase("generation", (*rollout.parts, *buckets)), "trainer, which keeps its state", ranks.waiting
        ),
    ]


def _buckets(case: Case) -> Iterator[Part]:
    """Weights on their way, where that is on the devices."""
    if buckets_on_gpus(case.spec) and (size := bucket_bytes(case.spec)) is not None:
        yield Part("weight buckets", 2 * size, "2 × engine.weight_bucket")


def _beside(phase: Phase, name: str, held: int) -> Phase:
    return Phase(phase.name, (*phase.parts, Part(name, held, "on the same device")))
