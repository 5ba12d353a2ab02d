"""Adds up what is in a device's memory at the same time, phase by phase.

GPUs    colocated, in turns   training │ weight update │ generation, each beside what the other side keeps
        colocated             training and generation, each beside all memory of the other side
        disaggregated         training on some GPUs, generation on others, `[[engines]]` on their own
CPU     all processes of the fullest node share its host memory
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.runner.planning.engine_memory import named_engine_phases, policy_engine_memory
from rlrun.runner.planning.memory import CUDA_CONTEXT_BYTES, EngineMemory, Part, Phase
from rlrun.runner.planning.rank_memory import RankMemory, rank_memory
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.runner.weights.carriers.table import carrier_for
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.lora_sync import sends_adapters

_WEIGHTS = ("weights", "adapters", "draft model")
"""The parts of an engine's memory that wake before an update."""


@dataclass(frozen=True, slots=True)
class JobMemory:
    """A job's memory on the fullest device of each kind; on CPU, on the fullest node."""

    phases: tuple[Phase, ...]
    engine: EngineMemory | None
    """None without rollouts."""


def job_memory(job: PlannedJob) -> JobMemory:
    """Returns all phases of a job.

    Engines of `[[engines]]` have their own GPUs, and so their own phases. On CPU they share the host with
    every other process and are a part of each phase.
    """
    ranks, named_engines = rank_memory(job), list(named_engine_phases(job))
    own_phases = named_engines if job.on_gpu else []
    parts_on_host = (
        []
        if job.on_gpu
        else [
            Part(f"engines of {phase.name}", phase.bytes, "all engines of the section")
            for phase in named_engines
        ]
    )
    shared = job.plan.colocated or not job.on_gpu
    free = job.device.memory - sum(part.bytes for part in parts_on_host)
    if shared:
        free -= ranks.after_release if sleeps(job.spec) else ranks.during_generation
    engine, rollout = policy_engine_memory(job, free)
    phases = [ranks.training] if rollout is None else [ranks.training, rollout]
    if rollout is not None and shared:
        phases = (_in_turns if sleeps(job.spec) else _together)(job, ranks, rollout)
    phases = [Phase(phase.name, (*phase.parts, *parts_on_host)) for phase in phases]
    return JobMemory((*phases, *own_phases), engine)


def _in_turns(job: PlannedJob, ranks: RankMemory, rollout: Phase) -> list[Phase]:
    """Returns the phases of a job whose trainer and engines release their memory to each other.

    Both are in memory during a weight update.
    """
    context = CUDA_CONTEXT_BYTES if job.on_gpu else 0
    asleep = context + (rollout.part_bytes("adapters") if job.on_gpu else 0)  # servers keep these
    weights = (part for part in rollout.parts if part.name in _WEIGHTS)
    update = Phase("weight update", (*weights, *_buckets(job)))
    trainer = "trainer (memory released)" if job.on_gpu else "trainer"
    return [
        _beside(ranks.training, "sleeping engines", asleep),
        _beside(update, "trainer", ranks.during_generation + context),
        _beside(rollout, trainer, ranks.after_release + context),
    ]


def _together(job: PlannedJob, ranks: RankMemory, rollout: Phase) -> list[Phase]:
    """Returns the phases of a job whose trainer and engines keep their memory while the other side works."""
    buckets = tuple(_buckets(job))
    training = Phase("training", (*ranks.training.parts, *buckets))
    generation = Phase("generation", (*rollout.parts, *buckets))
    return [
        _beside(training, "engines (memory kept)", rollout.bytes),
        _beside(generation, "trainer (state kept)", ranks.during_generation),
    ]


def _buckets(job: PlannedJob) -> Iterator[Part]:
    """Yields the buckets of a weight update if they are on the devices; adapters alone need none there."""
    if sends_adapters(job.spec, job.model.family):
        return
    size, source = carrier_for(job.spec).device_bytes(job.spec)
    if size:
        yield Part("weight buckets", size, source)


def _beside(phase: Phase, name: str, bytes_held: int) -> Phase:
    return Phase(phase.name, (*phase.parts, Part(name, bytes_held, "on the same device")))
