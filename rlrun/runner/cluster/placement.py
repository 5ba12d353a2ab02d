"""From a plan to what a cluster is asked for: bundles of resources, and who takes a seat in which. Pure.

GPUs                        a bundle is one GPU; those who share it take turns, each holds a part of it
CPU, colocated              rank i and engine i share a bundle of cores and take turns
CPU, disaggregated          every rank and engine has a bundle of its own
others                      engines of other models have devices, or bundles, of their own
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from rlrun.runner.planning.plan import EnginePlan, Plan, RankPlan


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources of one node that are reserved together."""

    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a process sits, and its part of the bundle."""

    bundle: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Placement:
    """What to reserve, and for whom."""

    bundles: tuple[Bundle, ...]
    ranks: tuple[Seat, ...]
    engines: tuple[Seat, ...]
    others: tuple[Seat, ...]
    strategy: Literal["STRICT_PACK", "PACK"]
    """One node for all, or as few as they fit on."""

    @property
    def cpus(self) -> float:
        """Cores in all."""
        return sum(bundle.cpus for bundle in self.bundles)

    @property
    def gpus(self) -> float:
        """GPUs in all."""
        return sum(bundle.gpus for bundle in self.bundles)


def place(plan: Plan) -> Placement:
    """The placement of a plan's ranks and engines."""
    processes: list[RankPlan | EnginePlan] = [*plan.ranks, *plan.engines, *plan.others]
    keys = [_device(process, plan) for process in processes]
    sharers: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        sharers[key].append(number)
    order = sorted(sharers)
    bundles = [_bundle([processes[number] for number in sharers[key]]) for key in order]
    seats = []
    for key in keys:
        number, share = order.index(key), len(sharers[key])
        seats.append(Seat(number, bundles[number].cpus / share, bundles[number].gpus / share))
    nodes = {process.place.node for process in processes}
    strategy: Literal["STRICT_PACK", "PACK"] = "STRICT_PACK" if len(nodes) == 1 else "PACK"
    ranks, engines = len(plan.ranks), len(plan.ranks) + len(plan.engines)
    return Placement(
        tuple(bundles),
        tuple(seats[:ranks]),
        tuple(seats[ranks:engines]),
        tuple(seats[engines:]),
        strategy,
    )


def _device(process: RankPlan | EnginePlan, plan: Plan) -> tuple[int, int, int]:
    """Processes with the same key share a bundle; keys sort by node."""
    if process.place.gpu is not None:
        return process.place.node, process.place.gpu, 0
    if isinstance(process, RankPlan):
        return process.place.node, process.rank, 0
    if process in plan.others:
        return process.place.node, plan.others.index(process), 2
    return process.place.node, process.index, 0 if plan.colocated else 1


def _bundle(sharers: list[RankPlan | EnginePlan]) -> Bundle:
    on_gpu = sharers[0].place.gpu is not None
    return Bundle(max(process.threads for process in sharers), 1.0 if on_gpu else 0.0)
