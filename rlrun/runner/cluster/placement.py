"""From a plan to what a cluster is asked for: bundles of resources, and who takes a seat in which. Pure.

GPUs                        a bundle is one GPU; those who share it take turns, each holds a part of it
a server over several       a seat in the first bundle of each node, and the right to the GPUs of the others
CPU, colocated              rank i and engine i share a bundle of cores and take turns
CPU, disaggregated          every rank and engine has a bundle of its own
others                      engines of other models have devices, or bundles, of their own
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from rlrun.runner.planning.plan import EnginePlan, Plan, RankPlan

Device = tuple[int, int, int]
"""Node, number on it, and kind of what shares a bundle."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources of one node that are reserved together."""

    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class BundleSlot:
    """Where a process sits, and its part of the bundle."""

    bundle: int
    cpus: float
    gpus: float
    beside: tuple[int, ...] = ()
    """Further bundles of the same node whose GPUs the process uses too, though it is seated in one."""


Seats = tuple[BundleSlot, ...]
"""One process's on each node that an engine lies on."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What to reserve, and for whom."""

    bundles: tuple[Bundle, ...]
    nodes: tuple[int, ...]
    """Where each bundle is planned."""
    ranks: tuple[BundleSlot, ...]
    engines: tuple[Seats, ...]
    others: tuple[Seats, ...]
    strategy: Literal["STRICT_PACK", "PACK"]
    """One node for all, or as few as they fit on."""

    @property
    def wide(self) -> list[BundleSlot]:
        """Seats that reach over several bundles."""
        return [seat for seats in (*self.engines, *self.others) for seat in seats if seat.beside]

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
    processes: list[RankPlan | EnginePlan] = [*plan.ranks, *plan.engines, *plan.named_engines]
    keys = [_devices(process, plan) for process in processes]
    sharers: defaultdict[Device, list[RankPlan | EnginePlan]] = defaultdict(list)
    for process, devices in zip(processes, keys, strict=True):
        for device in devices:
            sharers[device].append(process)
    order = sorted(sharers)
    bundles = [_bundle(sharers[device]) for device in order]

    def seat(devices: Sequence[Device]) -> BundleSlot:
        first, *beside = (order.index(device) for device in devices)
        bundle, share = bundles[first], len(sharers[devices[0]])
        return BundleSlot(first, bundle.cpus / share, bundle.gpus / share, tuple(beside))

    seats = [tuple(seat(list(one)) for _, one in groupby(devices, key=_node)) for devices in keys]
    ranks, engines = len(plan.ranks), len(plan.ranks) + len(plan.engines)
    nodes = tuple(map(_node, order))
    return Placement(
        tuple(bundles),
        nodes,
        tuple(one for [one] in seats[:ranks]),
        tuple(seats[ranks:engines]),
        tuple(seats[engines:]),
        "STRICT_PACK" if len(set(nodes)) == 1 else "PACK",
    )


def reserved_bundles(placement: Placement, found: Sequence[str]) -> list[int]:
    """Which reserved bundle stands for each planned one, given the node that each was found on: as numbered
    where no server needs more than one of a node, else those of one planned node on one node.

    ValueError where they were spread otherwise.
    """
    if all(len({found[one] for one in (seat.bundle, *seat.beside)}) == 1 for seat in placement.wide):
        return list(range(len(found)))
    left = {node: _by_size(placement, found, node) for node in dict.fromkeys(found)}
    stands = [0] * len(found)
    for node in dict.fromkeys(placement.nodes):
        planned = _by_size(placement, placement.nodes, node)
        sizes = [placement.bundles[one] for one in planned]
        fitting = [name for name, ones in left.items() if [placement.bundles[one] for one in ones] == sizes]
        if not fitting:
            raise ValueError("the GPUs of one server were reserved on different nodes")
        for plan, stand in zip(planned, left.pop(fitting[0]), strict=True):
            stands[plan] = stand
    return stands


def _by_size(placement: Placement, nodes: Sequence[object], node: object) -> list[int]:
    """Bundles of one node, the smallest first."""
    ones = [number for number, other in enumerate(nodes) if other == node]
    return sorted(ones, key=lambda one: (placement.bundles[one].cpus, placement.bundles[one].gpus))


def _node(device: Device) -> int:
    return device[0]


def _devices(process: RankPlan | EnginePlan, plan: Plan) -> list[Device]:
    """Processes with the same key share a bundle; keys sort by node."""
    if isinstance(process, RankPlan):
        place = process.location
        return [(place.node, process.rank if place.gpu is None else place.gpu, 0)]
    if process.location.gpu is not None:
        return [(place.node, place.gpu or 0, 0) for place in process.locations]
    if process in plan.named_engines:
        return [(process.location.node, plan.named_engines.index(process), 2)]
    return [(process.location.node, process.index, 0 if plan.colocated else 1)]


def _bundle(sharers: Sequence[RankPlan | EnginePlan]) -> Bundle:
    on_gpu = sharers[0].location.gpu is not None
    return Bundle(max(process.threads for process in sharers), 1.0 if on_gpu else 0.0)
