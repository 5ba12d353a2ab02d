"""How many engines and GPUs a layout asks for; pure arithmetic, shared by the spec's rules and the plan."""

from dataclasses import dataclass

from rlrun.specs.engine import EngineSpec
from rlrun.specs.job import Spec


@dataclass(frozen=True, slots=True)
class Layout:
    """Processes of a job and the devices they take."""

    ranks: int
    """Trainer ranks."""
    engines: int
    """Rollout engines that the job starts; 0 for an algorithm without rollouts."""
    others: int
    """Engines of `[[engines]]` that the job starts, all together; on devices of their own."""
    gpus: int
    """GPUs in all; 0 runs on CPU."""
    colocated: bool
    """Ranks and engines take turns on the same devices."""


def layout_of(spec: Spec, rollout: bool) -> Layout:
    """The layout a spec asks for.

    Raises ValueError, with the numbers and the cure, where it asks for more GPUs than there are or leaves
    some idle.
    """
    ranks = spec.trainer.parallel.world_size
    gpus = spec.cluster.nodes * spec.cluster.gpus_per_node
    colocated = spec.cluster.placement == "colocated"
    others = sum(started(section) * (section.count or 1) for section in spec.engines)
    rollout = rollout and started(spec.engine)
    if not gpus:
        engines = (spec.engine.count or spec.cluster.nodes) if rollout else 0
        return Layout(ranks, engines, others, 0, colocated)
    have = f"{gpus} (cluster.nodes {spec.cluster.nodes} × cluster.gpus_per_node {spec.cluster.gpus_per_node})"
    if ranks + others > gpus:
        besides = f" and {others} of [[engines]]" if others else ""
        raise ValueError(f"{_ranks(spec)}{besides} need a GPU each, and there are {have}")
    engines = _engines_on_gpus(spec, ranks, gpus - others, have) if rollout else 0
    used = (max(ranks, engines) if colocated else ranks + engines) + others
    if used < gpus:
        processes = f"{_ranks(spec)} and {engines + others} engines" if rollout or others else _ranks(spec)
        raise ValueError(f"{processes} use {used} GPUs, and there are {have}: the rest would idle")
    return Layout(ranks, engines, others, gpus, colocated)


def sleeps(spec: Spec) -> bool:
    """Whether engines and trainer, on the same devices, give their memory to each other in turns."""
    ours = spec.engine.type in ("native", "sglang")
    shared = ours and spec.cluster.placement == "colocated" and spec.debug.mode is None
    return shared and (bool(spec.cluster.gpus_per_node) if spec.engine.sleep is None else spec.engine.sleep)


def started(section: EngineSpec) -> bool:
    """Whether the job starts these engines."""
    return section.type != "external"


def _engines_on_gpus(spec: Spec, ranks: int, gpus: int, have: str) -> int:
    """A native engine takes one GPU."""
    if spec.cluster.placement == "colocated":
        if (spec.engine.count or 0) > gpus:
            raise ValueError(f"engine.count {spec.engine.count} needs as many GPUs, and there are {have}")
        return spec.engine.count or ranks
    engines = spec.engine.count or gpus - ranks
    if not engines or ranks + engines > gpus:
        asked = f"engine.count {engines}" if engines else "at least one engine"
        need = ranks + max(engines, 1)
        raise ValueError(f"disaggregated, {_ranks(spec)} and {asked} need {need} GPUs, and there are {have}")
    return engines


def _ranks(spec: Spec) -> str:
    """Trainer ranks and how they come about."""
    parallel = spec.trainer.parallel
    names = ("replicate", "fsdp", "context", "tensor", "pipeline")
    product = " × ".join(f"{name} {getattr(parallel, name)}" for name in names if getattr(parallel, name) > 1)
    return f"{parallel.world_size} trainer ranks ({product})" if product else "1 trainer rank"
