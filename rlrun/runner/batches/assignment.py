"""Assigns units of sequences to micro-batches and ranks, so that all ranks are equally busy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.runner.batches.bins import Bin, Work, best_fit_decreasing, loads_of, share_bins, share_items
from rlrun.runner.batches.units import Units, WorkOf, neighbours
from rlrun.runner.contracts.carriers import MicroBatches, TrainSequence

FLAT = 1.002
"""If waiting for each other costs ranks at most this factor, no other assignment is tried."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What fits into a micro-batch."""

    tokens: int
    sequences: int | None = None
    """If set, sequences count and tokens do not."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Micro-batches of every rank, by indices of sequences."""

    batches: MicroBatches
    duration: float
    """The sum of the slowest rank's work in every round."""


def pack_by_prefix(
    separate: Units, sequences: Sequence[TrainSequence], cost: WorkOf, budget: Budget, data_degree: int
) -> Packed:
    """Packs units that share a prefix as a whole, or in halves, quarters … down to separate units, whatever
    keeps the ranks busy for the shortest time.
    """
    order = neighbours(separate, sequences, cost)
    if order.units.tokens.sum() - order.shared.sum() == separate.tokens.sum():
        return pack_units(separate, budget, data_degree)  # nothing is shared
    most, best = budget.sequences or len(sequences), None
    max_batch_tokens = budget.tokens if budget.sequences is None else int(separate.tokens.sum())
    while True:
        units = order.joined(most, max_batch_tokens)
        packed = pack_units(units, budget, data_degree)
        if best is None or packed.duration < best.duration:
            best = packed
        if data_degree == 1 or len(units.members) == len(separate.members):
            return best  # one rank waits for no other: whole units are best
        most = -(-int(units.counts.max()) // 2)


def pack_units(units: Units, budget: Budget, data_degree: int) -> Packed:
    """Packs first and then assigns bins to ranks.

    If that is uneven, because there are few bins, also tries to assign units first and then pack, and returns
    the result with fewer micro-batches, or the faster one of two with the same number.
    """
    lengths, capacity = units.tokens, budget.tokens
    if budget.sequences is not None:
        lengths, capacity = units.counts, budget.sequences
    work = units.work
    ranks, duration = _in_order(share_bins(best_fit_decreasing(lengths, capacity), work, data_degree), work)
    if data_degree > 1 and duration > FLAT * work.sum() / data_degree:
        by_item, by_item_duration = _in_order(share_items(lengths, work, capacity, data_degree), work)
        if (len(by_item[0]), by_item_duration) < (len(ranks[0]), duration):
            ranks, duration = by_item, by_item_duration
    return Packed(_members(ranks, units.members), duration)


def _in_order(ranks: Sequence[list[Bin]], work: Work) -> tuple[list[list[Bin]], float]:
    """Returns each rank's micro-batches, most work first, and the sum of the slowest rank's work in every
    round: ranks wait for each other after each micro-batch.
    """
    loads = [loads_of(rank, work) for rank in ranks]
    orders = [np.argsort(-own, kind="stable") for own in loads]
    rounds = np.array([own[order] for own, order in zip(loads, orders, strict=True)])
    ordered = [[rank[place] for place in order.tolist()] for rank, order in zip(ranks, orders, strict=True)]
    return ordered, float(rounds.max(axis=0).sum())


def _members(ranks: Sequence[Sequence[Bin]], units: Sequence[Sequence[int]]) -> MicroBatches:
    """Returns micro-batches of sequences, given those of units."""
    return tuple(
        tuple(tuple(index for unit in batch for index in units[unit]) for batch in rank) for rank in ranks
    )
