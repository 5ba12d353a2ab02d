"""How many engines and GPUs a layout asks for; pure arithmetic, shared by the spec's rules and the plan."""

from dataclasses import dataclass
from itertools import accumulate

from rlrun.specs.derived.server_size import gpus_of, stages_of
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class Layout:
    """Processes of a job and the devices they take."""

    ranks: int
    """Trainer ranks."""
    engines: int
    """Rollout engines that the job starts; 0 for an algorithm without rollouts."""
    engine_gpus: int
    """GPUs of each of them; 1 on CPU."""
    others: tuple[int, ...]
    """GPUs of each engine of `[[engines]]` that the job starts; on devices of their own."""
    gpus: int
    """GPUs in all; 0 runs on CPU."""
    colocated: bool
    """Ranks and engines take turns on the same devices."""

    @property
    def first_engine(self) -> int:
        """Number of the first GPU that rollout engines take."""
        return 0 if self.colocated else self.ranks

    @property
    def first_other(self) -> int:
        """Number of the first GPU of `[[engines]]`, which take the last."""
        return self.gpus - sum(self.others)


def layout_of(spec: Spec, rollout: bool) -> Layout:
    """The layout a spec asks for.

    Raises ValueError, with the numbers and the cure, where it asks for more GPUs than there are, leaves some
    idle, or has a server over parts of several nodes.
    """
    ranks = spec.trainer.parallel.world_size
    gpus = spec.cluster.nodes * spec.cluster.gpus_per_node
    colocated = spec.cluster.placement == "colocated"
    sizes = [(gpus_of(section), section.count or 1) for section in spec.engines if starts_with_job(section)]
    others = tuple(size for size, count in sizes for _ in range(count))
    rollout = rollout and starts_with_job(spec.engine)
    if not gpus:
        engines = (spec.engine.count or spec.cluster.nodes) if rollout else 0
        return Layout(ranks, engines, 1, (1,) * len(others), 0, colocated)
    have = f"{gpus} (cluster.nodes {spec.cluster.nodes} × cluster.gpus_per_node {spec.cluster.gpus_per_node})"
    if ranks + sum(others) > gpus:
        beside = f" and [[engines]] with {sum(others)} GPUs" if others else ""
        raise ValueError(f"{_ranks(spec)}{beside} need {ranks + sum(others)} GPUs, and the job has {have}")
    size = gpus_of(spec.engine)
    engines = _engines_on_gpus(spec, ranks, gpus - sum(others), have) if rollout else 0
    used = (max(ranks, engines * size) if colocated else ranks + engines * size) + sum(others)
    if used < gpus:
        processes = (
            f"{_ranks(spec)} and {engines + len(others)} engines" if rollout or others else _ranks(spec)
        )
        raise ValueError(f"{processes} use {used} GPUs, and the job has {have}: the rest would be idle")
    layout = Layout(ranks, engines, size, others, gpus, colocated)
    _check_nodes(layout, spec.cluster.gpus_per_node)
    return layout


def sleeps(spec: Spec) -> bool:
    """Whether engines and trainer, on the same devices, give their memory to each other in turns."""
    ours = spec.engine.type in ("native", "sglang")
    shared = ours and spec.cluster.placement == "colocated" and spec.debug.mode is None
    return shared and (bool(spec.cluster.gpus_per_node) if spec.engine.sleep is None else spec.engine.sleep)


def starts_with_job(section: EngineSpec) -> bool:
    """Whether the job starts these engines."""
    return section.type != "external"


def _engines_on_gpus(spec: Spec, ranks: int, gpus: int, have: str) -> int:
    """As many as are asked for, or as there is room for."""
    size, count = gpus_of(spec.engine), spec.engine.count
    colocated = spec.cluster.placement == "colocated"
    need = size * (count or 1)
    asked = (f"engine.count {count}" if count else "at least one engine") + (
        f" of {size} GPUs ({_server(spec.engine)})" if size > 1 else ""
    )
    if colocated and need > (gpus if count else ranks):
        shared = f"the job has {have}" if count else f"colocated engines share those of {_ranks(spec)}"
        raise ValueError(f"{asked} needs {need} GPUs, and {shared}")
    if not colocated and ranks + need > gpus:
        raise ValueError(
            f"{_ranks(spec)} and {asked} on separate GPUs (disaggregated) need {ranks + need} GPUs, and the "
            f"job has {have}"
        )
    room = ranks if colocated else gpus - ranks
    if count is None and room % size:
        fitting = ", ".join(str(number) for number in range(1, room + 1) if room % number == 0)
        raise ValueError(
            f"{room} GPUs for rollout do not split evenly into servers of {size} GPUs "
            f"({_server(spec.engine)}); a server of {fitting} GPUs would fit"
        )
    return count or room // size


def _check_nodes(layout: Layout, per_node: int) -> None:
    """A server has GPUs of one node, or all those of several."""
    ours = (layout.engine_gpus,) * layout.engines
    servers = [*zip(ours, accumulate(ours, initial=layout.first_engine), strict=False)]
    servers += zip(layout.others, accumulate(layout.others, initial=layout.first_other), strict=False)
    for size, first in servers:
        place = first % per_node
        if place + size > per_node and (place or size % per_node):
            raise ValueError(
                f"an engine would use GPUs {first} to {first + size - 1}, parts of several nodes with "
                f"{per_node} GPUs each; a server must be within one node, or use all GPUs of several nodes"
            )


def _server(section: EngineSpec) -> str:
    """How the size of a server comes about."""
    stages = stages_of(section)
    return f"engine.tensor {section.tensor}" + (f" × pp_size {stages}" if stages > 1 else "")


def _ranks(spec: Spec) -> str:
    """Trainer ranks and how they come about."""
    parallel = spec.trainer.parallel
    names = ("replicate", "fsdp", "context", "tensor", "pipeline")
    product = " × ".join(f"{name} {getattr(parallel, name)}" for name in names if getattr(parallel, name) > 1)
    return f"{parallel.world_size} trainer ranks ({product})" if product else "1 trainer rank"
