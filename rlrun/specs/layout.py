"""How many engines and GPUs a layout asks for; pure arithmetic, shared by the spec's rules and the plan."""

from dataclasses import dataclass

from rlrun.specs.job import Spec


@dataclass(frozen=True, slots=True)
class Layout:
    """Processes of a job and the devices they take."""

    ranks: int
    """Trainer ranks."""
    engines: int
    """Rollout engines; 0 for an algorithm without rollouts."""
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
    if not gpus:
        engines = (spec.engine.count or spec.cluster.nodes) if rollout else 0
        return Layout(ranks, engines, 0, colocated)
    have = f"{gpus} (cluster.nodes {spec.cluster.nodes} × cluster.gpus_per_node {spec.cluster.gpus_per_node})"
    if ranks > gpus:
        raise ValueError(f"{_ranks(spec)} need a GPU each, and there are {have}")
    engines = _engines_on_gpus(spec, ranks, gpus, have) if rollout else 0
    used = max(ranks, engines) if colocated else ranks + engines
    if used < gpus:
        processes = f"{_ranks(spec)} and {engines} engines" if rollout else _ranks(spec)
        raise ValueError(f"{processes} use {used} GPUs, and there are {have}: the rest would idle")
    return Layout(ranks, engines, gpus, colocated)


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
