"""Packs sequences into micro-batches with a token budget, and gives every data rank the same work.

Whole sequences are packed into micro-batches by best-fit decreasing, and given to ranks so that the estimated
work (linear layers plus causal attention) is the same on each; every rank runs the same number of
micro-batches, because FSDP's collectives are issued micro-batch by micro-batch. Only lengths and shared
prefixes decide, so the order of the samples does not matter.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.config_defaults import with_family_defaults
from rlrun.plugins.types import Group
from rlrun.runner.batches.bins import Bin, Work, best_fit_decreasing, loads_of, share_bins, share_items
from rlrun.runner.batches.prefixes import shared_with_last, sharing_order
from rlrun.runner.batches.reduction import Reduction, token_scales
from rlrun.runner.contracts.carriers import MicroBatches, TrainSequence, TrainStep

FLAT = 1.002
"""If waiting for each other costs ranks at most this factor, no other assignment is tried."""
WorkOf = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Returns the work of sequences of given lengths."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated work of one sequence, in units of one token's linear layers."""

    attention: float = 0.0
    """Work of one attended position, relative to a token's linear layers: heads * head_dim * layers /
    parameters.
    """

    @classmethod
    def of_model(cls, config: Mapping[str, Any]) -> "Cost":
        """Returns the cost of a model from its `config.json`: the active parameters of layers and head, and
        attention by heads and layers.
        """
        config = with_family_defaults(config)
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or hidden // heads
        keys_values = config.get("num_key_value_heads") or heads
        if experts := config.get("num_experts_per_tok"):
            experts += config.get("n_shared_experts") or 0
            feed_forward = 3 * experts * config.get("moe_intermediate_size", config["intermediate_size"])
        else:
            feed_forward = 3 * config["intermediate_size"]
        linear = layers * hidden * (feed_forward + 2 * (heads + keys_values) * head_dim)
        return cls(layers * heads * head_dim / (linear + hidden * config["vocab_size"]))

    def __call__(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns `[N]`, the work of sequences of these lengths."""
        return lengths * (1.0 + self.attention * lengths)


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


def plan_steps(
    sequences: Sequence[TrainSequence],
    *,
    optimizer_steps: int,
    reduction: Reduction,
    max_batch_tokens: int,
    max_length: int,
    max_response_tokens: int,
    data_degree: int,
    cost: Cost = Cost(),
    together: bool = False,
    micro_batch_size: int | None = None,
    share_prefixes: bool = False,
) -> list[TrainStep]:
    """Splits a step's sequences into optimizer steps, and each of these into micro-batches for `data_degree`
    ranks.

    Executions keep their order and are split evenly over `optimizer_steps`; the sequences of one execution
    stay in one step. Indices in the result are positions in `sequences`. `max_batch_tokens` limits a
    micro-batch (a longer sequence is alone in its own), `max_length` is the model's limit. ValueError for a
    longer sequence, or for fewer executions than optimizer steps. `together` keeps the sequences of an
    execution side by side in one micro-batch (pairs of responses whose loss is one number).
    `micro_batch_size`: micro-batches have so many sequences, some perhaps fewer, whatever their tokens.
    `share_prefixes`: sequences that share a prefix go to the same micro-batch where ranks stay equally busy,
    and its tokens count once.
    """
    lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
    _check_lengths(lengths, max_length)
    budget = Budget(max_batch_tokens, micro_batch_size)
    steps = []
    for members in _split_executions([sequence.execution for sequence in sequences], optimizer_steps):
        units = separate_units(members, sequences, cost, together=together)
        packed = (
            pack_by_prefix(units, sequences, cost, budget, data_degree)
            if share_prefixes
            else pack_units(units, budget, data_degree)
        )
        chosen = [sequences[member] for member in members]
        scales = token_scales(
            [sequence.loss_mask for sequence in chosen],
            [sequence.execution for sequence in chosen],
            reduction,
            max_response_tokens,
        )
        has_cross_entropy = any(sequence.cross_entropy is not None for sequence in chosen)
        scale = dict(zip(members, scales.tolist(), strict=True))
        steps.append(TrainStep(packed.batches, scale, has_cross_entropy))
    return steps


def all_micro_batches(steps: Sequence[TrainStep]) -> MicroBatches:
    """Returns the micro-batches of all optimizer steps together, for one pass over all sequences."""
    return tuple(
        tuple(batch for rank in ranks for batch in rank)
        for ranks in zip(*(step.micro_batches for step in steps), strict=True)
    )


def micro_batches(
    lengths: NDArray[np.int64], max_batch_tokens: int, data_degree: int, cost: Cost = Cost()
) -> MicroBatches:
    """Packs sequences of these lengths under the token budget, for `data_degree` ranks.

    A rank's micro-batches come with the most work first, so that ranks that wait for each other run batches
    of similar size side by side. Micro-batches are empty if there are fewer sequences than ranks.
    """
    single = [[index] for index in range(len(lengths))]
    return pack_units(Units(single, lengths, cost(lengths)), Budget(max_batch_tokens), data_degree).batches


def _check_lengths(lengths: NDArray[np.int64], longest: int) -> None:
    if len(lengths) and lengths.max() > longest:
        raise ValueError(
            f"a training sequence has {lengths.max()} tokens, the model allows {longest} "
            "(max_position_embeddings); lower rollout.max_prompt_tokens or rollout.max_response_tokens"
        )


def _split_executions(executions: Sequence[str], parts: int) -> list[list[int]]:
    """Returns the indices of each optimizer step: executions in order of appearance, divided evenly."""
    number = {name: place for place, name in enumerate(dict.fromkeys(executions))}
    if len(number) < parts:
        raise ValueError(
            f"{len(number)} samples cannot make {parts} optimizer steps; lower trainer.optimizer_steps or "
            "raise rollout.batch_size (filters and failed samples count against it)"
        )
    steps: list[list[int]] = [[] for _ in range(parts)]
    for index, name in enumerate(executions):
        steps[number[name] * parts // len(number)].append(index)
    return steps


@dataclass(frozen=True, slots=True)
class Units:
    """N units, and what each takes of a micro-batch.

    A unit is a sequence, or all sequences of an execution; where prefixes are shared, it is several of these.
    """

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


def ranks_by_prompt(
    groups: Sequence[Group], steps: Sequence[TrainStep], data_ranks: Sequence[int]
) -> dict[int, list[int]]:
    """Returns the ranks that train on samples of each group, by the index of its prompt.

    `steps`: as packed for the sequences of these groups. `data_ranks`: the part of the data that each rank
    sees.
    """
    prompts = [group.prompt.index for group in groups for _ in group.samples]
    parts: defaultdict[int, set[int]] = defaultdict(set)
    for step in steps:
        for part, batches in enumerate(step.micro_batches):
            for batch in batches:
                for sequence in batch:
                    parts[prompts[sequence]].add(part)
    return {
        prompt: [rank for rank, part in enumerate(data_ranks) if part in trained_parts]
        for prompt, trained_parts in parts.items()
    }


@dataclass(frozen=True, slots=True)
class _Neighbours:
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


def neighbours(units: Units, sequences: Sequence[TrainSequence], work_of: WorkOf) -> _Neighbours:
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
    return _Neighbours(own, borders, border_work)


def _executions(members: Sequence[int], sequences: Sequence[TrainSequence]) -> list[list[int]]:
    units: dict[str, list[int]] = {}
    for member in members:
        units.setdefault(sequences[member].execution, []).append(member)
    return list(units.values())
