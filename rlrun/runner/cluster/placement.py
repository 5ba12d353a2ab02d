"""Turns a plan into bundles of resources to reserve, and assigns each process a slot in a bundle.

GPUs                        a bundle is one GPU; processes that share it take turns, and each holds a share
a server on several GPUs    has a slot in the first bundle of each node, and may use the node's other GPUs
CPU, colocated              rank i and engine i share a bundle of cores and take turns
CPU, disaggregated          every rank and every engine has its own bundle
named engines               engines of other models have their own devices or bundles
elastic engines             the bundles of each engine are reserved apart, on any node that has room for them
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rlrun.runner.planning.plan import EnginePlan, Plan, RankPlan

Device = tuple[int, int, int]
"""Identifies a bundle: the node, a number on that node, and a number for the kind of its processes."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources of one node that are reserved together."""

    cpus: float
    gpus: float

    @property
    def resources(self) -> dict[str, float]:
        """Returns what it reserves, by Ray's names."""
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}


@dataclass(frozen=True, slots=True)
class BundleSlot:
    """One process's share of a bundle."""

    bundle: int
    cpus: float
    gpus: float
    beside: tuple[int, ...] = ()
    """Further bundles on the same node whose GPUs the process also uses."""

    @property
    def bundles(self) -> tuple[int, ...]:
        """The numbers of its bundles."""
        return (self.bundle, *self.beside)


NodeSlots = tuple[BundleSlot, ...]
"""The slots of an engine's processes: one for each node that it runs on."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The bundles to reserve, and the slots of all processes in them."""

    bundles: tuple[Bundle, ...]
    nodes: tuple[int, ...]
    """The node that each bundle is planned on."""
    ranks: tuple[BundleSlot, ...]
    engines: tuple[NodeSlots, ...]
    named_engines: tuple[NodeSlots, ...]
    min_engines: int | None = None
    """How many of `engines` the job needs, where they are elastic; None if it needs all."""

    @property
    def by_node(self) -> list[list[int]]:
        """Returns the numbers of the bundles of each planned node, which Ray reserves on one host; without
        those of elastic engines.
        """
        apart = {number for slot in self.elastic for number in slot.bundles}
        numbers = [number for number in range(len(self.bundles)) if number not in apart]
        nodes = sorted({self.nodes[number] for number in numbers})
        return [[number for number in numbers if self.nodes[number] == node] for node in nodes]

    @property
    def elastic(self) -> list[BundleSlot]:
        """Returns the slots of elastic engines. The bundles of each are reserved on a host of their own."""
        return [] if self.min_engines is None else [slot for slots in self.engines for slot in slots]

    @property
    def wide(self) -> list[BundleSlot]:
        """Returns the wide slots: those whose process uses several bundles. Not those of elastic engines."""
        engines = self.engines if self.min_engines is None else ()
        return [slot for slots in (*engines, *self.named_engines) for slot in slots if slot.beside]

    @property
    def needed(self) -> list[list[Bundle]]:
        """Returns the bundles without which the job does not begin, in groups that need one host each."""
        needed = [] if self.min_engines is None else self.engines[: self.min_engines]
        numbers = [*self.by_node, *(slot.bundles for slots in needed for slot in slots)]
        return [[self.bundles[number] for number in group] for group in numbers]

    @property
    def cpus(self) -> float:
        """Returns the number of cores of all bundles."""
        return sum(bundle.cpus for bundle in self.bundles)

    @property
    def required(self) -> dict[str, float]:
        """Returns the resources without which the job does not begin, by Ray's names."""
        bundles = [bundle for bundles in self.needed for bundle in bundles]
        return {
            "GPU": sum(bundle.gpus for bundle in bundles),
            "CPU": sum(bundle.cpus for bundle in bundles),
        }


def place(plan: Plan) -> Placement:
    """Returns the placement of a plan's ranks and engines."""
    processes: list[RankPlan | EnginePlan] = [*plan.ranks, *plan.engines, *plan.named_engines]
    keys = [_devices(process, plan) for process in processes]
    sharers: defaultdict[Device, list[RankPlan | EnginePlan]] = defaultdict(list)
    for process, devices in zip(processes, keys, strict=True):
        for device in devices:
            sharers[device].append(process)
    order = sorted(sharers)
    bundles = [_bundle(sharers[device]) for device in order]

    def slot(devices: Sequence[Device]) -> BundleSlot:
        first, *beside = (order.index(device) for device in devices)
        bundle, share = bundles[first], len(sharers[devices[0]])
        return BundleSlot(first, bundle.cpus / share, bundle.gpus / share, tuple(beside))

    slots = [tuple(slot(list(on_node)) for _, on_node in groupby(devices, key=_node)) for devices in keys]
    ranks, engines = len(plan.ranks), len(plan.ranks) + len(plan.engines)
    return Placement(
        tuple(bundles),
        tuple(map(_node, order)),
        tuple(rank_slot for [rank_slot] in slots[:ranks]),
        tuple(slots[ranks:engines]),
        tuple(slots[engines:]),
        plan.min_engines,
    )


def match_nodes(bundles: Sequence[Sequence[Bundle]], hosts: Sequence[str]) -> list[int]:
    """Returns, for each planned node, the number of the planned node whose reserved bundles it takes.

    `bundles`: those of each planned node. `hosts`: the host that they were reserved on. A large host may have
    the bundles of several planned nodes: nodes with equal bundles are exchanged so that these nodes follow
    one another, because neighbouring ranks exchange most data.
    """
    unused = sorted(range(len(hosts)), key=lambda node: hosts.index(hosts[node]))
    matches = []
    for planned in bundles:
        match = next(node for node in unused if bundles[node] == planned)
        unused.remove(match)
        matches.append(match)
    return matches


def _node(device: Device) -> int:
    return device[0]


def _devices(process: RankPlan | EnginePlan, plan: Plan) -> list[Device]:
    """Returns the keys of the bundles that a process uses. Processes with the same key share a bundle."""
    if isinstance(process, RankPlan):
        location = process.location
        return [(location.node, process.rank if location.gpu is None else location.gpu, 0)]
    if process.location.gpu is not None:
        return [(location.node, location.gpu or 0, 0) for location in process.locations]
    if process in plan.named_engines:
        return [(process.location.node, plan.named_engines.index(process), 2)]
    return [(process.location.node, process.index, 0 if plan.colocated else 1)]


def _bundle(sharers: Sequence[RankPlan | EnginePlan]) -> Bundle:
    on_gpu = sharers[0].location.gpu is not None
    return Bundle(max(process.threads for process in sharers), 1.0 if on_gpu else 0.0)
