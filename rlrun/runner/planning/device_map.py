"""Which device each process of a job lies on, and how many threads it computes with; pure arithmetic."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rlrun.specs.derived.engine_layout import Layout
from rlrun.specs.sections.job import Spec


@dataclass(frozen=True, slots=True)
class DeviceLocation:
    """A device: a GPU of a node, or a share of a node's cores."""

    node: int
    gpu: int | None
    """Number of the GPU on its node; None on CPU."""


Places = tuple[DeviceLocation, ...]


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def place_ranks(spec: Spec, layout: Layout) -> list[DeviceLocation]:
    """GPUs in order, so that neighbouring ranks, which talk most, share a node."""
    if layout.gpus:
        return [_gpu(number, spec) for number in range(layout.ranks)]
    return _spread(layout.ranks, spec.cluster.nodes)


def local_ranks(ranks: Sequence[DeviceLocation]) -> list[int]:
    """Each rank's number among those of its node."""
    seen: Counter[int] = Counter()
    numbers = []
    for place in ranks:
        numbers.append(seen[place.node])
        seen[place.node] += 1
    return numbers


def place_engines(spec: Spec, layout: Layout) -> list[Places]:
    """On the ranks' own GPUs when colocated, else on those after them."""
    if layout.gpus:
        return _in_a_row(layout.first_engine, (layout.engine_gpus,) * layout.engines, spec)
    return [(place,) for place in _spread(layout.engines, spec.cluster.nodes)]


def place_others(spec: Spec, layout: Layout) -> list[Places]:
    """On the last GPUs, or spread over the nodes."""
    if layout.gpus:
        return _in_a_row(layout.first_named_engine, layout.named_engine_gpus, spec)
    return [(place,) for place in _spread(len(layout.named_engine_gpus), spec.cluster.nodes)]


def _in_a_row(first: int, sizes: Sequence[int], spec: Spec) -> list[Places]:
    """GPUs of engines of these sizes, one engine after the other."""
    firsts = accumulate(sizes, initial=first)
    return [
        tuple(_gpu(begin + number, spec) for number in range(size))
        for begin, size in zip(firsts, sizes, strict=False)
    ]


def _gpu(number: int, spec: Spec) -> DeviceLocation:
    return DeviceLocation(*divmod(number, spec.cluster.gpus_per_node))


def _spread(count: int, nodes: int) -> list[DeviceLocation]:
    """`count` processes over the nodes, in blocks that differ by one at most."""
    return [DeviceLocation(number * nodes // count, None) for number in range(count)]


def share_threads(
    spec: Spec, layout: Layout, places: tuple[list[DeviceLocation], list[Places], list[Places]], cores: int
) -> tuple[list[int], list[int], list[int]]:
    """Threads of each rank, each engine, each of the others: those who work at the same time on a node share
    its cores, a server of several GPUs as many times.
    """
    ranks: list[Places] = [(place,) for place in places[0]]
    engines, others = places[1:]

    def shares(owners: Sequence[Places], at_work: Sequence[Places]) -> list[int]:
        sharers = Counter(place.node for places in at_work for place in places)
        return [spec.cluster.threads or max(1, cores // sharers[places[0].node]) for places in owners]

    everyone = [*ranks, *engines, *others]
    if not layout.colocated:
        return shares(ranks, everyone), shares(engines, everyone), shares(others, everyone)
    busier = max(ranks, engines, key=lambda owners: sum(len(places) for places in owners))
    with_ranks, with_engines = [*ranks, *others], [*engines, *others]
    return shares(ranks, with_ranks), shares(engines, with_engines), shares(others, [*busier, *others])
