"""Shared prefixes: sequences as a forest, in which every token of a common prefix exists once. numpy only.

Samples of a group share their prompt, and the conversations of an agent share their first turns. In the order
of their tokens, the sequences of one tree are neighbours, and what a sequence shares with all sequences
before it is what it shares with the last of them. Packed in this order, the forest is in depth-first order:

    sequences       in order, tokens shared       packed          positions       ends
    0: a b c d      2: a b         0              a b x y c d     0 1 2 3 2 3     6 6 4 4 6 6
    1: a b x y      1: a b x y     2
    2: a b          0: a b c d     2              (a < b < x < y < c < d)

The `end` of a token is the place in the pack where the part of the tree ends that continues its sequence:
query q attends to key k if and only if k <= q < ends[k].
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlrun.specs.derived.shared_prefixes import MIN_SHARE, SHORTEST

Tokens = NDArray[np.int32]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Forest:
    """T packed tokens of N sequences."""

    tokens: Indices
    """`[T]`"""
    positions: Indices
    """`[T]` position of each token in its sequences."""
    ends: NDArray[np.int32]
    """`[T]` the end of the part of the pack that continues each token's sequence."""
    trees: tuple[int, ...]
    """The number of tokens of each tree, in order; they sum to T."""
    paths: tuple[Indices, ...]
    """`[N]` the packed places of each sequence's tokens, in the order in which the sequences were given."""


def sharing_order(
    sequences: Sequence[Tokens], shortest: int = SHORTEST, least_share: float = MIN_SHARE
) -> tuple[list[int], Indices]:
    """Returns the sequences' indices in the order of their tokens, and `[N]` how many tokens each shares with
    the one before it in that order.
    """
    keys = [sequence.astype(">i4").tobytes() for sequence in sequences]  # bytes compare as their tokens do
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    return order, shared_with_last([sequences[index] for index in order], shortest, least_share)


def shared_with_last(
    sequences: Sequence[Tokens], shortest: int = SHORTEST, least_share: float = MIN_SHARE
) -> Indices:
    """Returns `[N]` how many tokens each sequence shares with the one before it: 0 for the first, and where
    it would be fewer than `shortest` tokens, or a smaller share of the sequence than `least_share`.
    """
    shared = np.zeros(len(sequences), np.int64)
    shares = least_share * np.array([len(sequence) for sequence in sequences])
    for place, (last, sequence) in enumerate(pairwise(sequences), start=1):
        shared[place] = _common(last, sequence)
    return np.where((shared < shortest) | (shared < shares), 0, shared)


def forest_size(sequences: Sequence[Tokens], shortest: int = SHORTEST, least_share: float = MIN_SHARE) -> int:
    """Returns T, the number of tokens of the sequences' forest."""
    _, shared = sharing_order(sequences, shortest, least_share)
    return sum(map(len, sequences)) - int(shared.sum())


def shared_forest(
    sequences: Sequence[Tokens], shortest: int = SHORTEST, least_share: float = MIN_SHARE
) -> Forest:
    """Returns the sequences as trees, in which prefixes exist once that `shared_with_last` counts."""
    order, shared = sharing_order(sequences, shortest, least_share)
    return _forest(sequences, order, shared.tolist())


def separate_forest(sequences: Sequence[Tokens]) -> Forest:
    """Returns each sequence as a tree of its own, in the order given."""
    return _forest(sequences, range(len(sequences)), [0] * len(sequences))


def _forest(sequences: Sequence[Tokens], order: Sequence[int], shared: Sequence[int]) -> Forest:
    total = sum(map(len, sequences)) - sum(shared)
    tokens, positions = np.empty(total, np.int64), np.empty(total, np.int64)
    ends = np.empty(total, np.int32)
    paths = [np.zeros(0, np.int64)] * len(order)
    path, size, starts = np.zeros(0, np.int64), 0, []
    for index, common in zip(order, shared, strict=True):
        ends[path[common:]] = size
        if common == 0 and len(sequences[index]):
            starts.append(size)
        own = slice(size, size + len(sequences[index]) - common)
        tokens[own] = sequences[index][common:]
        positions[own] = np.arange(common, len(sequences[index]))
        paths[index] = path = np.concatenate((path[:common], np.arange(own.start, own.stop)))
        size = own.stop
    ends[path] = size
    trees = np.diff([*starts, size]).tolist() if starts else []
    return Forest(tokens, positions, ends, tuple(trees), tuple(paths))


def _common(left: Tokens, right: Tokens) -> int:
    """Returns the length of the longest common prefix."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    return int(different.argmax()) if different.any() else length


# A forest of sequences that share prefixes, cut into calls of a kernel that knows only rows of documents.
#
# A segment is a part of the pack without a branch: its tokens are in exactly the same sequences. A query sees
# its own segment up to its own place, and every segment before it on its path as a whole. What continues a
# segment follows it in the pack, so all queries that see it are one piece. The segments of one level (those
# with as many segments before them) see disjoint pieces:
#
#     packed      a b x y c d           segments  [a b] [x y] [c d]
#     level 0     queries x y c d see keys a b    level 1  nothing continues [x y] or [c d]
@dataclass(frozen=True, slots=True)
class Level:
    """The segments of a level that are continued, and the queries that see them."""

    queries: Indices
    """`[Q]` places in the pack: the queries of the first segment, then those of the next …"""
    keys: Indices
    """`[K]` places in the pack, in the same order."""
    query_lengths: list[int]
    """The number of queries for each segment; they sum to Q."""
    key_lengths: list[int]
    """The length of each segment; they sum to K."""


def cut_branches(ends: NDArray[np.int32]) -> tuple[list[int], list[Level]]:
    """Returns the lengths of all segments, in order, and the levels, given the `Forest.ends` of a pack."""
    starts = [0, *(1 + np.flatnonzero(np.diff(ends))).tolist()]
    stops = [*starts[1:], len(ends)]
    by_level: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    path: list[int] = []
    for start, stop in zip(starts, stops, strict=True):
        while path and path[-1] <= start:
            path.pop()  # the pack has left this segment's part of the tree
        end = int(ends[start])
        if stop < end:
            by_level[len(path)].append((start, stop, end))
        path.append(end)
    lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
    return lengths, [_level(by_level[number]) for number in sorted(by_level)]


def _level(segments: list[tuple[int, int, int]]) -> Level:
    return Level(
        queries=np.concatenate([np.arange(stop, end) for _, stop, end in segments]),
        keys=np.concatenate([np.arange(start, stop) for start, stop, _ in segments]),
        query_lengths=[end - stop for _, stop, end in segments],
        key_lengths=[stop - start for start, stop, _ in segments],
    )
