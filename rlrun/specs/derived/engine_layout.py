"""Computes how many engines and GPUs a spec needs; pure functions, for the spec's rules and the plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rlrun.specs.derived.engine_groups import EngineGroup, policy_groups
from rlrun.specs.derived.served_adapters import shares_policy
from rlrun.specs.derived.server_size import gpus_of, stages_of
from rlrun.specs.sections.cluster import ClusterSpec
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class Layout:
    """The processes of a job and the number of devices they use."""

    ranks: int
    """Number of trainer ranks."""
    engine_groups: tuple[EngineGroup, ...]
    """The group of each of the policy's engines that the job starts; empty for an algorithm without
    rollouts."""
    named_engine_gpus: tuple[int, ...]
    """GPUs of each engine of `[[engines]]` that the job starts. They never share GPUs with the policy."""
    gpus: int
    """Number of GPUs of the job; 0 on CPUs."""
    colocated: bool
    """Whether ranks and the policy's engines take turns on the same devices."""

    @property
    def engines(self) -> int:
        """Number of the policy's engines that the job starts."""
        return len(self.engine_groups)

    @property
    def engine_gpus(self) -> tuple[int, ...]:
        """GPUs of each of these engines; 1 on CPUs."""
        return tuple(gpus_of(group.section) if self.gpus else 1 for group in self.engine_groups)

    @property
    def first_engine(self) -> int:
        """Index of the first GPU of the policy's engines."""
        return 0 if self.colocated else self.ranks

    @property
    def first_named_engine(self) -> int:
        """Index of the first GPU of `[[engines]]`, which use the last GPUs of the job."""
        return self.gpus - sum(self.named_engine_gpus)


def layout_of(spec: Spec, rollout: bool) -> Layout:
    """Returns the layout of a spec. `rollout`: whether the algorithm generates samples.

    Raises ValueError, with the numbers and the cure, where a spec needs more GPUs than the job has, leaves
    GPUs idle, or puts a server on parts of several nodes.
    """
    ranks = spec.trainer.parallel.world_size
    gpus = spec.cluster.gpus
    colocated = spec.cluster.placement == "colocated"
    sizes = [(gpus_of(section), section.count or 1) for section in spec.engines if starts_with_job(section)]
    named_engine_gpus = tuple(size for size, count in sizes for _ in range(count))
    rollout = rollout and starts_with_job(spec.engine)
    if not gpus:
        engines = _repeated(spec, spec.cluster.nodes) if rollout else ()
        return Layout(ranks, engines, (1,) * len(named_engine_gpus), 0, colocated)
    have = f"{gpus} ({_cluster(spec)})"
    named_gpus = sum(named_engine_gpus)
    if ranks + named_gpus > gpus:
        beside = f" and [[engines]] with {named_gpus} GPUs" if named_gpus else ""
        raise ValueError(f"{_ranks(spec)}{beside} need {ranks + named_gpus} GPUs, and the job has {have}")
    engines = _engines_on_gpus(spec, ranks, gpus - named_gpus, have) if rollout else ()
    layout = Layout(ranks, engines, named_engine_gpus, gpus, colocated)
    engine_gpus = sum(layout.engine_gpus)
    used = (max(ranks, engine_gpus) if colocated else ranks + engine_gpus) + named_gpus
    if used < gpus:
        num_engines = len(engines) + len(named_engine_gpus)
        engines_too = f" and {_count(num_engines, 'engine')}" if rollout or named_gpus else ""
        processes = f"{_ranks(spec)}{engines_too} use {_count(used, 'GPU')}"
        message = f"{processes}, and the job has {have}: the remaining GPUs would be idle"
        raise ValueError(message)
    _check_nodes(layout, spec.cluster)
    return layout


def sleeps(spec: Spec) -> bool:
    """Returns whether colocated engines and trainer free the devices' memory for each other."""
    can_sleep = spec.engine.type in ("native", "sglang", None)  # None: no engines, or not loaded from a file
    shared = can_sleep and spec.cluster.placement == "colocated" and spec.debug.mode is None
    given: bool | None = spec.engine.given("sleep")
    return shared and (bool(spec.cluster.gpus_per_node) if given is None else given)


def starts_with_job(section: EngineSpec) -> bool:
    """Returns whether the job starts these engines: external ones already run, and the policy's engines may
    serve an adapter of `[[engines]]` too.
    """
    return section.type != "external" and not shares_policy(section)


def _engines_on_gpus(spec: Spec, ranks: int, gpus: int, have: str) -> tuple[EngineGroup, ...]:
    """Returns `engine.count` engines, those of the groups, or as many as fit.

    Raises ValueError if they do not fit.
    """
    size, count = gpus_of(spec.engine), spec.engine.count
    colocated, is_given = spec.cluster.placement == "colocated", bool(count or spec.engine.groups)
    need = sum(gpus_of(group.section) for group in _repeated(spec, 1))
    request = _request(spec)
    if colocated and need > (gpus if is_given else ranks):
        shared = f"the job has {have}" if is_given else f"colocated engines share the GPUs of {_ranks(spec)}"
        raise ValueError(f"{request} needs {need} GPUs, and {shared}")
    if not colocated and ranks + need > gpus:
        raise ValueError(
            f"{_ranks(spec)} and {request} on separate GPUs (disaggregated) need {ranks + need} GPUs, and "
            f"the job has {have}"
        )
    available = ranks if colocated else gpus - ranks
    if not is_given and available % size:
        fitting = ", ".join(str(number) for number in range(1, available + 1) if available % number == 0)
        raise ValueError(
            f"{available} GPUs for rollout do not split evenly into servers of {size} GPUs "
            f"({_server(spec.engine)}); a server of {fitting} GPUs would fit"
        )
    return _repeated(spec, available // size)


def _repeated(spec: Spec, default: int) -> tuple[EngineGroup, ...]:
    """Returns the group of each engine. `default`: the number of engines where the spec has none."""
    return tuple(group for group in policy_groups(spec) for _ in range(group.section.count or default))


def _request(spec: Spec) -> str:
    """Returns the engines that a spec asks for, for messages."""
    if spec.engine.groups:
        return (
            " + ".join(
                f"{_count(group.section.count or 1, 'server')} of {_count(gpus_of(group.section), 'GPU')}"
                for group in policy_groups(spec)
            )
            + " (engine.groups)"
        )
    size, count = gpus_of(spec.engine), spec.engine.count
    of_size = f" of {size} GPUs ({_server(spec.engine)})" if size > 1 else ""
    return (f"engine.count {count}" if count else "at least one engine") + of_size


def _check_nodes(layout: Layout, cluster: ClusterSpec) -> None:
    """Raises ValueError if a server would use parts of several nodes."""
    sizes, nodes = layout.engine_gpus, cluster.gpus_of_nodes
    servers = [*zip(sizes, accumulate(sizes, initial=layout.first_engine), strict=False)]
    servers += zip(
        layout.named_engine_gpus,
        accumulate(layout.named_engine_gpus, initial=layout.first_named_engine),
        strict=False,
    )
    for size, first in servers:
        node, first_on_node = node_and_gpu(first, cluster)
        within = first_on_node + size <= nodes[node]
        if not within and (first_on_node or size not in accumulate(nodes[node:])):
            kind = f"{nodes[0]} GPUs each" if len(set(nodes)) == 1 else f"{_listed(nodes)} GPUs"
            raise ValueError(
                f"an engine would use GPUs {first} to {first + size - 1}, parts of several nodes with "
                f"{kind}; a server must be within one node, or use all GPUs of several nodes"
            )


def node_and_gpu(number: int, cluster: ClusterSpec) -> tuple[int, int]:
    """Returns the node of a GPU of the job, and its number there."""
    if cluster.node_gpus is None:
        return divmod(number, cluster.gpus_per_node)
    for node, gpus in enumerate(cluster.node_gpus):
        if number < gpus:
            return node, number
        number -= gpus
    raise AssertionError("the layout has checked the number of GPUs")


def _cluster(spec: Spec) -> str:
    """Returns the settings that give the number of GPUs, for messages."""
    cluster = spec.cluster
    if cluster.node_gpus is not None:
        return f"cluster.node_gpus [{_listed(cluster.node_gpus)}]"
    return f"cluster.nodes {cluster.nodes} × cluster.gpus_per_node {cluster.gpus_per_node}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _server(section: EngineSpec) -> str:
    """Returns the settings that give the size of a server, for messages."""
    stages = stages_of(section)
    return f"engine.tensor {section.tensor}" + (f" × pp_size {stages}" if stages > 1 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ranks(spec: Spec) -> str:
    """Returns the number of trainer ranks with its factors, for messages."""
    parallel = spec.trainer.parallel
    names = ("replicate", "fsdp", "context", "tensor", "pipeline")
    product = " × ".join(f"{name} {getattr(parallel, name)}" for name in names if getattr(parallel, name) > 1)
    return f"{parallel.world_size} trainer ranks ({product})" if product else "1 trainer rank"
