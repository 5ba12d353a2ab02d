"""Bin packing: items into bins under a capacity, and bins or items over ranks with the same work for each."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bin = list[int]
"""Indices of the items in it."""


def best_fit_decreasing(lengths: NDArray[np.int64], capacity: int) -> list[Bin]:
    """Bins of indices whose lengths sum to at most `capacity`; a longer item is alone. Longest first, ties by
    index.

    Johnson 1973: at most 11/9 of the optimum, in practice within a fraction of a percent. O(N log N).
    """
    bins: list[Bin] = []
    open_bins: dict[int, list[int]] = {}  # room left -> bins with that room
    rooms: list[int] = []  # the keys of open_bins, ascending
    order = np.argsort(-lengths, kind="stable")
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        place = bisect_left(rooms, length)
        if place == len(rooms):
            chosen, room = len(bins), capacity - length
            bins.append([index])
        else:
            before = rooms[place]
            chosen, room = open_bins[before].pop(), before - length
            bins[chosen].append(index)
            if not open_bins[before]:
                del open_bins[before], rooms[place]
        if room <= 0:
            continue
        if room in open_bins:
            open_bins[room].append(chosen)
        else:
            open_bins[room] = [chosen]
            insort(rooms, room)
    return bins


def total_work(work: NDArray[np.float64], rank: Sequence[Bin]) -> float:
    """Work of all items in a rank's bins."""
    return float(sum(work[batch].sum() for batch in rank))


def share_bins(bins: list[Bin], work: NDArray[np.float64], ranks: int) -> list[list[Bin]]:
    """`[rank][bin]`: longest-processing-time assignment of packed bins, the same number to each rank.

    Bins are split, or empty ones added, where their number does not divide by the ranks.
    """
    bins = _split_to_multiple(bins, work, max(len(bins), 1), ranks)
    heap = [(0.0, rank) for rank in range(ranks)]
    result: list[list[Bin]] = [[] for _ in range(ranks)]
    loads = [float(work[batch].sum()) for batch in bins]
    for place in sorted(range(len(bins)), key=lambda place: (-loads[place], place)):
        load, rank = heapq.heappop(heap)
        result[rank].append(bins[place])
        if len(result[rank]) < len(bins) // ranks:
            heapq.heappush(heap, (load + loads[place], rank))
    return result


def share_items(
    lengths: NDArray[np.int64], work: NDArray[np.float64], max_tokens: int, ranks: int
) -> list[list[Bin]]:
    """`[rank][bin]`: longest-processing-time assignment of items to ranks, each rank packed by itself."""
    heap = [(0.0, rank) for rank in range(ranks)]
    members: list[list[int]] = [[] for _ in range(ranks)]
    order = np.lexsort((np.arange(len(work)), -work))
    for index, amount in zip(order.tolist(), work[order].tolist(), strict=True):
        load, rank = heap[0]
        members[rank].append(index)
        heapq.heapreplace(heap, (load + amount, rank))
    packed = [
        [[own[i] for i in batch] for batch in best_fit_decreasing(lengths[own], max_tokens)]
        for own in members
    ]
    count = max(1, *(len(rank) for rank in packed))
    return [_split_to_multiple(rank, work, count, 1)[:count] for rank in packed]


def _split_to_multiple(bins: list[Bin], work: NDArray[np.float64], at_least: int, multiple: int) -> list[Bin]:
    """Halve the busiest bins until there are `at_least`, and a multiple of `multiple`; empty ones at need."""
    target = -(-at_least // multiple) * multiple
    heap = [(-float(work[batch].sum()), place, batch) for place, batch in enumerate(bins) if len(batch) > 1]
    heapq.heapify(heap)
    result = dict(enumerate(bins))
    while len(result) < target:
        if heap:
            _, place, batch = heapq.heappop(heap)
            parts = _halve(batch, work)
        else:
            place, parts = len(result), ([],)
        for new, part in zip((place, len(result)), parts, strict=False):
            result[new] = part
            if len(part) > 1:
                heapq.heappush(heap, (-float(work[part].sum()), new, part))
    return list(result.values())


def _halve(batch: Bin, work: NDArray[np.float64]) -> tuple[Bin, ...]:
    """Two bins of about the same work; `batch` comes with the longest first."""
    left: Bin = []
    right: Bin = []
    balance = 0.0
    for index in batch:
        side, sign = (left, 1.0) if balance <= 0 else (right, -1.0)
        side.append(index)
        balance += sign * float(work[index])
    return left, right
