"""Packing of sequences that share prefixes: their tokens count once, and groups stay together."""

import numpy as np
import pytest

from rlrun.runner.batches.packing import Cost
from rlrun.runner.batches.prefixes import forest_size
from rlrun.runner.batches.units import neighbours, separate_units
from rlrun.runner.contracts.carriers import TrainSequence
from tests.runner.batches.forests import random_sequences
from tests.runner.batches.test_packing import plan

PROMPT, RESPONSE = 100, 20


def sequence(tokens, execution, prompt=PROMPT):
    response = len(tokens) - prompt
    zeros = np.zeros(response, np.float32)
    return TrainSequence(
        tokens=np.asarray(tokens, np.int32),
        prompt_length=prompt,
        loss_mask=zeros + 1,
        advantages=zeros,
        rollout_log_probs=zeros,
        execution=execution,
    )


def groups(count, samples, seed=0):
    """Sequences of `count` groups with `samples` each, in a random order."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(0, 1000, (count, PROMPT))
    sequences = [
        sequence(np.concatenate((prompt, rng.integers(0, 1000, RESPONSE))), f"{number}-{i}")
        for number, prompt in enumerate(prompts)
        for i in range(samples)
    ]
    return [sequences[i] for i in rng.permutation(len(sequences))]


def packed(sequences, **changes):
    [step] = plan(sequences, share_prefixes=True, **changes)
    batches = [batch for rank in step.micro_batches for batch in rank]
    assert sorted(i for batch in batches for i in batch) == list(range(len(sequences)))
    return step.micro_batches


def unique(sequences, batch):
    return forest_size([sequences[i].tokens for i in batch])


@pytest.mark.parametrize(("budget", "micro_batches"), [(260, 4), (520, 2), (1040, 1), (200, 8)])
def test_tokens_of_a_prompt_count_once(budget, micro_batches):
    """4 groups of 8: 260 tokens each, and 960 without sharing."""
    sequences = groups(4, 8)
    [rank] = packed(sequences, max_batch_tokens=budget)
    assert len(rank) == micro_batches
    assert all(unique(sequences, batch) <= budget for batch in rank)


def test_groups_stay_together_where_ranks_have_equal_work():
    sequences = groups(4, 8)
    for rank in packed(sequences, data_degree=4):
        assert [unique(sequences, batch) for batch in rank] == [PROMPT + 8 * RESPONSE]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_group_is_divided_where_ranks_would_be_idle(ranks):
    sequences = groups(1, 8)
    shares = packed(sequences, data_degree=ranks)
    assert [len(batch) for rank in shares for batch in rank] == [8 // ranks] * ranks


def test_a_number_of_sequences_per_micro_batch():
    [rank] = packed(groups(2, 6), micro_batch_size=4, max_batch_tokens=1)
    assert sorted(map(len, rank)) == [4, 4, 4] or sorted(map(len, rank)) == [2, 2, 4, 4]
    assert max(map(len, rank)) <= 4


def test_pairs_stay_in_one_micro_batch():
    sequences = groups(3, 4, seed=1)
    pairs = [sequence(one.tokens, str(i // 2)) for i, one in enumerate(sequences)]
    shares = packed(pairs, together=True, data_degree=2, max_batch_tokens=PROMPT + 3 * RESPONSE)
    for batch in (batch for rank in shares for batch in rank):
        assert all(i ^ 1 in batch for i in batch)


def test_the_order_of_the_sequences_does_not_matter():
    sequences = groups(5, 3)
    order = np.random.default_rng(7).permutation(len(sequences))
    ours = packed(sequences, data_degree=2, max_batch_tokens=400)
    again = packed([sequences[i] for i in order], data_degree=2, max_batch_tokens=400)

    def members(batches, names):
        return [[{names(i) for i in batch} for batch in rank] for rank in batches]

    assert members(again, lambda i: int(order[i])) == members(ours, int)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("together", [False, True])
def test_units_count_their_tokens_and_work(seed, together):
    """A unit's tokens are at least those of its forest, and exactly those if its members were sorted."""
    rng = np.random.default_rng(seed)
    tokens = random_sequences(rng, count=14, longest=200, vocabulary=2)
    sequences = [sequence(own, str(i // 2), prompt=1) for i, own in enumerate(tokens) if len(own) > 1]
    everything = range(len(sequences))
    cost = Cost(1e-2)
    order = neighbours(separate_units(everything, sequences, cost, together=together), sequences, cost)
    for most, budget in ((1, 10**6), (4, 10**6), (100, 300), (100, 10**6)):
        units = order.joined(most, budget)
        assert sorted(i for unit in units.members for i in unit) == list(everything)
        for unit, size, work in zip(units.members, units.tokens, units.work, strict=True):
            true = forest_size([sequences[i].tokens for i in unit])
            separate = sum(len(sequences[i].tokens) for i in unit)
            assert true <= size <= separate
            assert together or size == true
            assert work <= cost(np.array([len(sequences[i].tokens) for i in unit])).sum() + 1e-9
            assert len(unit) <= max(most, 2) and (size <= budget or len(unit) <= 2)


def test_unrelated_sequences_are_packed_as_without_sharing():
    unrelated = groups(6, 1)
    [without] = plan(unrelated, max_batch_tokens=250, data_degree=2)
    shares = packed(unrelated, max_batch_tokens=250, data_degree=2)
    assert [len(rank) for rank in shares] == [len(rank) for rank in without.micro_batches]
