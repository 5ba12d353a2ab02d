"""Sequences into micro-batches for eight data ranks: rlrun's packing beside two usual ones.

    python benchmarks/packing.py [--samples 10000 100000] [--rounds 5]

`first-fit`: in order of arrival, bins dealt to ranks in turn. `differencing`: sequences shared out over ranks
by Karmarkar and Karp's largest differencing (k-way), each rank packed by first-fit. `rlrun`: best-fit
decreasing, bins shared out by longest processing time. All make the same number of micro-batches on every
rank, whole sequences, 8192 tokens each.

`fill`: tokens over the room of all micro-batches. `busiest`: work of the busiest rank over the mean, in
percent above. `waiting`: share of the ranks' time lost where they wait for each other after every
micro-batch. Times are CPU times, medians of the rounds, methods side by side.
"""

import argparse
import heapq
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.batches.packing import Cost, micro_batches

CAPACITY, RANKS = 8192, 8
COST = Cost(attention=1.0 / 12_000)
"""A 7B decoder: attention costs as much as the matrices at 12,000 tokens."""

Lengths = NDArray[np.int64]
Ranks = Sequence[Sequence[Sequence[int]]]


def lognormal(count: int, rng: np.random.Generator) -> Lengths:
    """Responses of a chat model."""
    return np.clip(rng.lognormal(6, 0.8, count), 16, CAPACITY).astype(np.int64)


def bimodal(count: int, rng: np.random.Generator) -> Lengths:
    """Short answers, and long ones just over a third of a micro-batch."""
    long = rng.random(count) < 0.3
    return (
        np.where(long, rng.normal(3000, 300, count), rng.normal(250, 60, count))
        .clip(16, CAPACITY)
        .astype(int)
    )


def reasoning(count: int, rng: np.random.Generator) -> Lengths:
    """Like a reasoning model's: prompts of some 150 tokens, a heavy tail, a twelfth cut at the limit."""
    prompts = rng.gamma(4, 40, count)
    responses = rng.lognormal(7.1, 0.75, count)
    cut = rng.random(count) < 1 / 12
    return np.clip(prompts + np.where(cut, CAPACITY, responses), 32, CAPACITY).astype(np.int64)


def first_fit(lengths: Lengths, members: Sequence[int]) -> list[list[int]]:
    """Each sequence into the first micro-batch that has room for it."""
    rooms = np.zeros(len(members), dtype=np.int64)
    bins: list[list[int]] = []
    for index in members:
        length = lengths[index]
        place = int(np.argmax(rooms[: len(bins) + 1] >= length)) if bins else 0
        if place >= len(bins) or rooms[place] < length:
            place = len(bins)
            rooms[place] = CAPACITY
            bins.append([])
        bins[place].append(index)
        rooms[place] -= length
    return bins


def in_turn(lengths: Lengths) -> Ranks:
    """First-fit in order of arrival; empty micro-batches where their number does not divide."""
    bins = first_fit(lengths, range(len(lengths)))
    bins += [[] for _ in range(-len(bins) % RANKS)]
    return [bins[rank::RANKS] for rank in range(RANKS)]


def differencing(lengths: Lengths) -> Ranks:
    """Karmarkar and Karp 1982: merge the two most uneven partial partitions, largest with smallest."""
    work = COST(lengths).tolist()
    heap = [(-amount, i, [(amount, [i])] + [(0.0, [])] * (RANKS - 1)) for i, amount in enumerate(work)]
    heapq.heapify(heap)
    ticket = len(heap)
    while len(heap) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        pairs = zip(one, reversed(other), strict=True)
        merged = [(a + b, _joined(left, right)) for (a, left), (b, right) in pairs]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], ticket, merged))
        ticket += 1
    ranks = [first_fit(lengths, sorted(members)) for _, members in heap[0][2]]
    count = max(map(len, ranks))
    return [rank + [[] for _ in range(count - len(rank))] for rank in ranks]


def _joined(left: list[int], right: list[int]) -> list[int]:
    """The shorter appended to the longer, whose list is used on."""
    if len(left) < len(right):
        left, right = right, left
    return left + right if len(left) < 2 else (left.extend(right) or left)


def ours(lengths: Lengths) -> Ranks:
    """Returns the micro-batches that rlrun makes."""
    return micro_batches(lengths, CAPACITY, RANKS, COST)


METHODS: dict[str, Callable[[Lengths], Ranks]] = {
    "first-fit": in_turn,
    "differencing": differencing,
    "rlrun": ours,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| lengths | sequences | method | micro-batches | fill | busiest | waiting | ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for mix in (lognormal, bimodal, reasoning):
        for count in options.samples:
            compare(mix.__name__, mix(count, np.random.default_rng(0)), options.rounds)


def compare(mix: str, lengths: Lengths, rounds: int) -> None:
    """One row a method; rounds take turns."""
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    plans: dict[str, Ranks] = {}
    for _ in range(rounds):
        for name, method in METHODS.items():
            start = time.process_time()
            plans[name] = method(lengths)
            times[name].append(time.process_time() - start)
    for name, plan in plans.items():
        figures = judge(lengths, plan)
        milliseconds = 1000 * statistics.median(times[name])
        print(f"| {mix} | {len(lengths):,} | {name} | {figures} | {milliseconds:,.0f} |", flush=True)


def judge(lengths: Lengths, ranks: Ranks) -> str:
    """Micro-batches, fill, busiest rank, waiting; after a check that nothing is lost or too large."""
    everything = sorted(i for rank in ranks for batch in rank for i in batch)
    assert everything == list(range(len(lengths)))
    assert len({len(rank) for rank in ranks}) == 1
    sizes = np.array([[lengths[list(batch)].sum() for batch in rank] for rank in ranks])
    assert sizes.max() <= CAPACITY
    work = COST(lengths)
    loads = np.array([sorted((work[list(batch)].sum() for batch in rank), reverse=True) for rank in ranks])
    busiest = loads.sum(axis=1).max() / loads.sum(axis=1).mean() - 1
    waiting = 1 - loads.mean(axis=0).sum() / loads.max(axis=0).sum()
    fill = lengths.sum() / (sizes.size * CAPACITY)
    return f"{sizes.size:,} | {fill:.2%} | +{busiest:.3%} | {waiting:.2%}"


if __name__ == "__main__":
    main()
