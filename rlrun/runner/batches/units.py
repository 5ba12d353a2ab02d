"""Units: the sequences that packing keeps in one micro-batch.

A unit is a sequence, or all sequences of an execution; where prefixes are shared, it is several of these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.batches.prefixes import shared_with_last, sharing_order
from rlrun.runner.contracts.carriers import TrainSequence

WorkOf = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Returns the work of sequences of given lengths."""


@dataclass(frozen=True, slots=True)
class Units:
    """N units, and what each takes of a micro-batch."""

    members: list[list[int]]
    """`[N]` indices of each unit's sequences."""
    tokens: NDArray[np.int64]
    """`[N]`; where prefixes are shared, each of their tokens counts once."""
    work: NDArray[np.float64]
    """`[N]`"""

    @property
    def counts(self) -> NDArray[np.int64]:
        """`[N]` the number of sequences of each unit."""
        return np.array([len(unit) for unit in self.members], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """N units in the order of their tokens, in which those that share a prefix are neighbours."""

    units: Units
    shared: NDArray[np.int64]
    """`[N]` the number of tokens that each unit shares with the one before it."""
    shared_work: NDArray[np.float64]
    """`[N]` the work of these tokens."""

    def joined(self, most_sequences: int, max_batch_tokens: int) -> Units:
        """Returns units of neighbours that share a prefix, with at most so many sequences and tokens.

        A unit that is larger by itself stays alone.
        """
        members: list[list[int]] = []
        tokens: list[int] = []
        work: list[float] = []
        for place, unit in enumerate(self.units.members):
            own, shared = int(self.units.tokens[place]), int(self.shared[place])
            fits = shared > 0 and len(members[-1]) + len(unit) <= most_sequences
            if fits and tokens[-1] + own - shared <= max_batch_tokens:
                members[-1] += unit
                tokens[-1] += own - shared
                work[-1] += float(self.units.work[place] - self.shared_work[place])
            else:
                members.append(list(unit))
                tokens.append(own)
                work.append(float(self.units.work[place]))
        return Units(members, np.array(tokens, dtype=np.int64), np.array(work))


def separate_units(
    members: Sequence[int], sequences: Sequence[TrainSequence], work_of: WorkOf, *, together: bool
) -> Units:
    """Returns each of the sequences as a unit, or all of an execution if they are kept `together`."""
    units = _executions(members, sequences) if together else [[member] for member in members]
    lengths = [np.array([len(sequences[member].tokens) for member in unit]) for unit in units]
    tokens = np.array([own.sum() for own in lengths], dtype=np.int64)
    return Units(units, tokens, np.array([work_of(own).sum() for own in lengths]))


def neighbours(units: Units, sequences: Sequence[TrainSequence], work_of: WorkOf) -> Neighbours:
    """Returns the units in the order of their tokens, with what each shares with the one before it."""
    order, _ = sharing_order([sequences[unit[0]].tokens for unit in units.members])
    ordered = [units.members[index] for index in order]
    flat = [sequences[member].tokens for unit in ordered for member in unit]
    shared, lengths = shared_with_last(flat), np.array([len(each) for each in flat], dtype=np.int64)
    added, added_work = lengths - shared, work_of(lengths) - work_of(shared)
    firsts = np.cumsum([0, *map(len, ordered)])[:-1]
    borders, border_work = shared[firsts], work_of(shared[firsts])
    own = Units(
        ordered,
        np.add.reduceat(added, firsts) + borders,
        np.add.reduceat(added_work, firsts) + border_work,
    )
    return Neighbours(own, borders, border_work)


def _executions(members: Sequence[int], sequences: Sequence[TrainSequence]) -> list[list[int]]:
    units: dict[str, list[int]] = {}
    for member in members:
        units.setdefault(sequences[member].execution, []).append(member)
    return list(units.values())
