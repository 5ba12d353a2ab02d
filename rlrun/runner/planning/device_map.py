"""Assigns each process of a job to a device, and divides the cores among processes; pure arithmetic."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rlrun.specs.derived.engine_layout import Layout, node_and_gpu
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class DeviceLocation:
    """Identifies a device: a GPU of a node, or a share of a node's cores."""

    node: int
    gpu: int | None
    """Number of the GPU on its node; None on CPU."""


DeviceLocations = tuple[DeviceLocation, ...]


def available_cores() -> int:
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def place_ranks(spec: Spec, layout: Layout) -> list[DeviceLocation]:
    """Returns the device of each trainer rank.

    GPUs are taken in order, so that neighbouring ranks, which exchange most data, share a node.
    """
    if layout.gpus:
        return [_gpu(number, spec) for number in range(layout.ranks)]
    return _spread(layout.ranks, spec.cluster.nodes)


def place_engines(spec: Spec, layout: Layout) -> list[DeviceLocations]:
    """Returns the devices of each policy engine: the ranks' GPUs if colocated, else the GPUs after them."""
    if layout.gpus:
        return _consecutive_gpus(layout.first_engine, layout.engine_gpus, spec)
    return [(location,) for location in _spread(layout.engines, spec.cluster.nodes)]


def place_named_engines(spec: Spec, layout: Layout) -> list[DeviceLocations]:
    """Returns the devices of each engine of `[[engines]]`: the last GPUs, or CPUs spread over the nodes."""
    if layout.gpus:
        return _consecutive_gpus(layout.first_named_engine, layout.named_engine_gpus, spec)
    return [(location,) for location in _spread(len(layout.named_engine_gpus), spec.cluster.nodes)]


def _consecutive_gpus(first: int, sizes: Sequence[int], spec: Spec) -> list[DeviceLocations]:
    """Returns the GPUs of engines with the given numbers of GPUs, one engine after the other."""
    firsts = accumulate(sizes, initial=first)
    return [
        tuple(_gpu(begin + number, spec) for number in range(size))
        for begin, size in zip(firsts, sizes, strict=False)
    ]


def _gpu(number: int, spec: Spec) -> DeviceLocation:
    return DeviceLocation(*node_and_gpu(number, spec.cluster))


def _spread(count: int, nodes: int) -> list[DeviceLocation]:
    """Spreads `count` processes over the nodes, in blocks whose sizes differ by at most one."""
    return [DeviceLocation(number * nodes // count, None) for number in range(count)]


def share_threads(
    spec: Spec,
    layout: Layout,
    locations: tuple[list[DeviceLocation], list[DeviceLocations], list[DeviceLocations]],
    cores: int,
) -> tuple[list[int], list[int], list[int]]:
    """Returns the number of threads of each rank, each policy engine and each named engine.

    Processes that work at the same time on a node share its cores equally; a server over several GPUs gets
    one share per GPU. Colocated ranks and engines take turns, so each side may use the cores of the other.
    """
    ranks: list[DeviceLocations] = [(location,) for location in locations[0]]
    engines, named_engines = locations[1:]

    def thread_counts(processes: Sequence[DeviceLocations], active: Sequence[DeviceLocations]) -> list[int]:
        sharers = Counter(location.node for process in active for location in process)
        return [spec.cluster.threads or max(1, cores // sharers[process[0].node]) for process in processes]

    if not layout.colocated:
        active = [*ranks, *engines, *named_engines]
        return (
            thread_counts(ranks, active),
            thread_counts(engines, active),
            thread_counts(named_engines, active),
        )
    # named engines work beside ranks in some phases and beside policy engines in others: assume the fuller
    busier = max(ranks, engines, key=lambda processes: sum(len(process) for process in processes))
    return (
        thread_counts(ranks, [*ranks, *named_engines]),
        thread_counts(engines, [*engines, *named_engines]),
        thread_counts(named_engines, [*busier, *named_engines]),
    )
