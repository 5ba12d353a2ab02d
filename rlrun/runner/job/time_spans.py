"""Sets of times, each a list of `(start, end)` in seconds. Pure functions."""

from collections.abc import Iterable
from itertools import pairwise
from math import inf

Times = list[tuple[float, float]]


def merge(times: Iterable[tuple[float, float]]) -> Times:
    """Returns the same times in order, where none overlap."""
    merged: Times = []
    for start, end in sorted(times):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def overlap(first: Iterable[tuple[float, float]], second: Iterable[tuple[float, float]]) -> Times:
    """Returns the times that are in both."""
    others = merge(second)
    both = ((max(a, c), min(b, d)) for a, b in merge(first) for c, d in others)
    return [(start, end) for start, end in both if start < end]


def gaps(times: Iterable[tuple[float, float]]) -> Times:
    """Returns all other times, from minus to plus infinity."""
    bounds = [(-inf, -inf), *merge(times), (inf, inf)]
    return [(end, start) for (_, end), (start, _) in pairwise(bounds)]
