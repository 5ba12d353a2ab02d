"""Packs items into bins of a given capacity, and divides bins or items among ranks with equal work."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Bin = list[int]
"""Indices of the items in one bin."""
Work = NDArray[np.float64]

LEVEL = 1e-5
"""Ranks whose work differs by less than this share of the mean count as equal."""
EXCHANGES = 4
"""Maximum number of exchanges per rank."""


def best_fit_decreasing(lengths: NDArray[np.int64], capacity: int) -> list[Bin]:
    """Returns bins of indices whose lengths sum to at most `capacity`; a longer item gets its own bin.

    Bins are filled with the longest items first, ties by index.

    Johnson 1973: at most 11/9 of the optimum, in practice within a fraction of a percent. The bin with the
    smallest sufficient room is found by one search for a byte in memory.
    """
    bins: list[Bin] = []
    with_room: defaultdict[int, list[Bin]] = defaultdict(list)
    has_bins = bytearray(capacity + 1)  # by room: 1 if with_room has a bin with that room
    tightest = has_bins.find
    order = np.argsort(-lengths, kind="stable")
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        room = tightest(1, length)
        if room < 0:
            chosen, room = [index], capacity
            bins.append(chosen)
        else:
            candidates = with_room[room]
            chosen = candidates.pop()
            chosen.append(index)
            if not candidates:
                has_bins[room] = 0
        room -= length
        if room > 0:
            with_room[room].append(chosen)
            has_bins[room] = 1
    return bins


def loads_of(bins: Sequence[Bin], work: Work) -> Work:
    """Returns the work of each bin."""
    number = np.repeat(np.arange(len(bins)), np.fromiter(map(len, bins), np.int64, len(bins)))
    members = np.fromiter(chain.from_iterable(bins), np.int64, len(number))
    loads: Work = np.bincount(number, weights=work[members], minlength=len(bins)).astype(np.float64)
    return loads


def share_bins(bins: list[Bin], work: Work, ranks: int) -> list[list[Bin]]:
    """Returns `[rank][bin]`: each rank gets the same number of bins, by longest processing time first; then
    ranks exchange bins until their work is equal.

    If the number of bins is not a multiple of the ranks, bins are split or empty ones are added.
    """
    bins = _split_to_multiple(bins, work, max(len(bins), 1), ranks)
    loads = loads_of(bins, work)
    heap = [(0.0, rank) for rank in range(ranks)]
    places: list[list[int]] = [[] for _ in range(ranks)]
    for place in np.argsort(-loads, kind="stable").tolist():
        load, rank = heapq.heappop(heap)
        places[rank].append(place)
        if len(places[rank]) < len(bins) // ranks:
            heapq.heappush(heap, (load + float(loads[place]), rank))
    _level(places, loads)
    return [[bins[place] for place in rank] for rank in places]


def _level(places: list[list[int]], loads: Work) -> None:
    """Exchanges bins between the busiest and the idlest rank while that brings their work closer together."""
    totals = np.array([loads[rank].sum() for rank in places])
    for _ in range(EXCHANGES * len(places)):
        busy, idle = int(totals.argmax()), int(totals.argmin())
        half = (totals[busy] - totals[idle]) / 2
        if half <= LEVEL * totals.mean():
            return
        order = np.argsort(loads[places[idle]])
        idle_loads = loads[places[idle]][order]
        ideal = loads[places[busy]] - half  # the best load to swap each bin for
        near = np.searchsorted(idle_loads, ideal).clip(0, len(idle_loads) - 1)
        near = np.where(
            np.abs(idle_loads[near - 1] - ideal) < np.abs(idle_loads[near] - ideal), near - 1, near
        )
        nearest = int(np.abs(idle_loads[near] - ideal).argmin())
        moved = float(loads[places[busy][nearest]] - idle_loads[near[nearest]])
        if not 0 < moved < 2 * half:
            return
        other = int(order[near[nearest]])
        places[busy][nearest], places[idle][other] = places[idle][other], places[busy][nearest]
        totals[busy] -= moved
        totals[idle] += moved


def share_items(lengths: NDArray[np.int64], work: Work, capacity: int, ranks: int) -> list[list[Bin]]:
    """Returns `[rank][bin]`: items go to ranks by longest processing time first, then each rank is packed."""
    heap = [(0.0, rank) for rank in range(ranks)]
    members: list[list[int]] = [[] for _ in range(ranks)]
    order = np.argsort(-work, kind="stable")
    for index, amount in zip(order.tolist(), work[order].tolist(), strict=True):
        load, rank = heap[0]
        members[rank].append(index)
        heapq.heapreplace(heap, (load + amount, rank))
    packed = [
        [[own[i] for i in batch] for batch in best_fit_decreasing(lengths[own], capacity)] for own in members
    ]
    count = max(1, *(len(rank) for rank in packed))
    return [_split_to_multiple(rank, work, count, 1)[:count] for rank in packed]


def _split_to_multiple(bins: list[Bin], work: Work, at_least: int, multiple: int) -> list[Bin]:
    """Halves the busiest bins until there are `at_least` and a multiple of `multiple`, or adds empty ones."""
    target = -(-at_least // multiple) * multiple
    if len(bins) == target:
        return bins
    loads = loads_of(bins, work).tolist()
    heap = [(-loads[place], place, batch) for place, batch in enumerate(bins) if len(batch) > 1]
    heapq.heapify(heap)
    result = list(bins)
    while len(result) < target:
        if not heap:
            result.append([])
            continue
        _, place, batch = heapq.heappop(heap)
        result[place], other = _halve(batch, work)
        result.append(other)
        for new, part in ((place, result[place]), (len(result) - 1, other)):
            if len(part) > 1:
                heapq.heappush(heap, (-float(work[part].sum()), new, part))
    return result


def _halve(batch: Bin, work: Work) -> tuple[Bin, Bin]:
    """Returns two bins of about the same work; `batch` has the longest items first."""
    left: Bin = []
    right: Bin = []
    balance = 0.0
    for index in batch:
        side, sign = (left, 1.0) if balance <= 0 else (right, -1.0)
        side.append(index)
        balance += sign * float(work[index])
    return left, right
