import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.plugins.testing import group
from rlrun.plugins.types import Group
from rlrun.runner.batches.bins import best_fit_decreasing
from rlrun.runner.batches.packing import (
    Cost,
    all_micro_batches,
    micro_batches,
    neighbours,
    plan_steps,
    ranks_by_prompt,
    separate_units,
)
from rlrun.runner.batches.prefixes import forest_size
from rlrun.runner.contracts.carriers import MicroBatches, TrainSequence, TrainStep
from tests.runner.batches.forests import random_sequences

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "schedule_metric_vectors.jsonl")
    .read_text()
    .splitlines()
]
PROMPT, RESPONSE = 100, 20


def rows(name):
    return [row for row in VECTORS if row["fn"] == name]


def sequence(length, execution="0", response=1, mask=1.0):
    return TrainSequence(
        tokens=np.zeros(length, np.int32),
        prompt_length=length - response,
        loss_mask=np.full(response, mask, np.float32),
        advantages=np.zeros(response, np.float32),
        rollout_log_probs=np.zeros(response, np.float32),
        execution=execution,
    )


def plan(sequences, **changes):
    """Their optimizer steps; one, for one rank, in one micro-batch, unless changed."""
    usual = {
        "optimizer_steps": 1,
        "reduction": "per_sample_mean",
        "max_batch_tokens": 10**6,
        "max_length": 10**6,
        "max_response_tokens": 1,
        "data_degree": 1,
    }
    return plan_steps(sequences, **(usual | changes))


def check(ranks, lengths, budget, degree):
    assert len(ranks) == degree
    assert len({len(rank) for rank in ranks}) == 1, "every rank runs the same number of micro-batches"
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(len(lengths)))
    for rank in ranks:
        for batch in rank:
            assert len(batch) == 1 or sum(lengths[i] for i in batch) <= budget


@pytest.mark.parametrize("row", rows("first_fit_pack"), ids=lambda row: str(row["in"]))
def test_needs_no_more_bins_than_first_fit(row):
    lengths, budget = np.array(row["in"]["lengths"]), row["in"]["max_tokens"]
    bins = best_fit_decreasing(lengths, budget)
    check([bins], lengths, budget, 1)
    assert len(bins) <= len(row["out"])


@pytest.mark.parametrize("row", rows("get_seqlen_balanced_partitions"), ids=lambda row: str(row["in"]))
def test_partitions_are_no_less_balanced(row):
    lengths, ranks = np.array(row["in"]["lengths"]), row["in"]["k"]
    ours = micro_batches(lengths, max_batch_tokens=10**6, data_degree=ranks)
    assert max(lengths[list(rank[0])].sum() for rank in ours) <= max(
        lengths[part].sum() for part in row["out"]
    )


@pytest.mark.parametrize("row", rows("expand_bins_by_splitting"), ids=lambda row: str(row["in"]))
def test_a_bin_splits_where_ranks_would_stay_idle(row):
    lengths, target = np.array(row["in"]["lengths"]), row["in"]["target"]
    ours = micro_batches(lengths, max_batch_tokens=10**6, data_degree=target)
    check(ours, lengths, 10**6, target)
    assert sorted(sum(lengths[i] for i in rank[0]) for rank in ours) == sorted(
        sum(lengths[i] for i in part) for part in row["out"]
    )


@pytest.mark.parametrize(
    "row",
    [row for row in rows("build_dp_schedule") if "raises" not in row["out"]],
    ids=lambda row: str(row["in"]),
)
def test_schedule_has_the_same_samples_in_each_step_and_no_more_micro_batches(row):
    given, expected = row["in"], row["out"]
    budget = given.get("max_tokens_per_gpu", 10**6) * given["cp"]
    lengths = given["total_lengths"]
    sequences = [
        sequence(length, str(execution))
        for length, execution in zip(lengths, given["rollout_indices"], strict=True)
    ]
    executions = len(set(given["rollout_indices"]))
    steps = plan(
        sequences,
        optimizer_steps=executions // given["global_batch_size"],
        max_batch_tokens=budget,
        data_degree=given["dp"],
    )
    assert len(steps) == len(expected["global_batch_sizes"])
    done = [0] * given["dp"]
    for step, count in zip(steps, expected["num_microbatches"], strict=True):
        theirs = {
            expected["partitions"][rank][place]
            for rank in range(given["dp"])
            for batch in expected["micro_batch_indices"][rank][done[rank] : done[rank] + count]
            for place in batch
        }
        assert set(step.scale) == theirs
        done = [place + count for place in done]
        assert len({len(rank) for rank in step.micro_batches}) == 1
        assert len(step.micro_batches[0]) <= count
        for rank in step.micro_batches:
            for batch in rank:
                assert len(batch) == 1 or sum(lengths[i] for i in batch) <= budget


@pytest.mark.parametrize(
    "row",
    [row for row in rows("build_dp_schedule") if "raises" in row["out"]],
    ids=lambda row: str(row["in"]),
)
def test_token_budgets_schedule_batches_that_fixed_sample_counts_cannot(row):
    """The reference fails if the samples do not fill whole rounds; with token budgets every batch works."""
    given = row["in"]
    sequences = [
        sequence(length, str(execution))
        for length, execution in zip(given["total_lengths"], given["rollout_indices"], strict=True)
    ]
    (step,) = plan(
        sequences,
        max_batch_tokens=given["micro_batch_size"] * max(given["total_lengths"]),
        data_degree=given["dp"],
    )
    check(step.micro_batches, given["total_lengths"], 10**6, given["dp"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60),
    st.integers(1, 5),
    st.sampled_from([64, 256, 1000]),
    st.randoms(use_true_random=False),
)
def test_every_sequence_once_under_the_budget_whatever_the_order(lengths, degree, budget, random):
    cost = Cost(attention=0.01)
    ours = micro_batches(np.array(lengths), budget, degree, cost)
    check(ours, lengths, budget, degree)
    shuffled = list(lengths)
    random.shuffle(shuffled)
    again = micro_batches(np.array(shuffled), budget, degree, cost)
    by_length = [[[lengths[i] for i in batch] for batch in rank] for rank in ours]
    assert by_length == [[[shuffled[i] for i in batch] for batch in rank] for rank in again]


def test_bins_are_within_a_percent_of_the_bound_and_ranks_are_flat():
    lengths = np.clip(np.random.default_rng(0).lognormal(6, 0.8, 20_000), 16, 8192).astype(np.int64)
    bins = best_fit_decreasing(lengths, 8192)
    assert len(bins) <= 1.01 * lengths.sum() / 8192 + 1
    cost = Cost(attention=1e-4)
    ranks = micro_batches(lengths, 8192, 8, cost)
    loads = [sum(cost(lengths[list(batch)]).sum() for batch in rank) for rank in ranks]
    assert max(loads) <= 1.001 * np.mean(loads)
    assert len(ranks[0]) * 8 <= len(bins) + 8


def test_a_sequence_over_the_budget_is_alone():
    lengths = np.array([300, 5, 5])
    assert micro_batches(lengths, 100, 1) == (((0,), (1, 2)),)


def test_fewer_sequences_than_ranks_leave_empty_micro_batches():
    assert sorted(len(rank[0]) for rank in micro_batches(np.array([7]), 100, 3)) == [0, 0, 1]


def test_too_long_for_the_model_is_refused():
    with pytest.raises(ValueError, match="has 9 tokens, the model allows 8"):
        plan([sequence(9)], max_batch_tokens=100, max_length=8)


def test_fewer_samples_than_optimizer_steps_are_refused():
    with pytest.raises(ValueError, match="1 samples cannot make 2 optimizer steps"):
        plan([sequence(9)], optimizer_steps=2, max_batch_tokens=100)


def test_as_many_samples_as_optimizer_steps_make_one_each():
    steps = plan([sequence(9, "a"), sequence(5, "b")], optimizer_steps=2)
    assert [step.micro_batches for step in steps] == [(((0,),),), (((1,),),)]


def test_one_pass_over_all_steps():
    sequences = [sequence(10, str(i)) for i in range(8)]
    steps = plan(sequences, optimizer_steps=2, max_batch_tokens=20, data_degree=2)
    check(all_micro_batches(steps), [10] * 8, 20, 2)


def test_pairs_stay_side_by_side():
    sequences = [sequence(length, str(i // 2)) for i, length in enumerate([9, 3, 8, 2, 7, 7, 1, 1])]
    (step,) = plan(sequences, max_batch_tokens=12, data_degree=2, together=True)
    batches = [batch for rank in step.micro_batches for batch in rank]
    assert sorted(i for batch in batches for i in batch) == list(range(8))
    for batch in batches:
        assert [first + 1 for first in batch[::2]] == list(batch[1::2])


def test_cost_counts_active_parameters():
    dense = {
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "vocab_size": 10,
    }
    attention = Cost.of_model(dense).attention
    parameters = 3 * (3 * 8 * 16 + 8 * 4 * (2 + 1 + 1) + 2 * 4 * 8) + 8 * 10
    assert attention == pytest.approx(3 * 2 * 4 / parameters)
    sparse = dense | {"num_experts_per_tok": 2, "moe_intermediate_size": 8}
    assert Cost.of_model(sparse).attention == pytest.approx(attention)


def test_cost_uses_the_defaults_of_absent_config_keys():
    config = {
        "model_type": "qwen3",
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 32,
        "intermediate_size": 16,
        "vocab_size": 10,
    }
    assert Cost.of_model(config) == Cost.of_model(config | {"head_dim": 128, "num_key_value_heads": 32})
    experts = config | {"num_experts_per_tok": 2, "model_type": "gpt_oss"}  # as wide as intermediate_size
    assert Cost.of_model(experts) == Cost.of_model(experts | {"moe_intermediate_size": 16})


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize(("size", "count"), [(1, 16), (4, 16), (4, 17), (8, 5), (4, 2)])
def test_micro_batches_of_a_number_of_samples(size, count, degree):
    rng = np.random.default_rng(0)
    sequences = [sequence(int(length), str(i)) for i, length in enumerate(rng.integers(2, 500, count))]
    (step,) = plan(sequences, max_batch_tokens=1, data_degree=degree, micro_batch_size=size)
    ranks = step.micro_batches
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(count))
    assert {len(rank) for rank in ranks} == {max(1, -(-count // (size * degree)))}
    assert max(len(batch) for rank in ranks for batch in rank) <= size


def test_a_pair_counts_as_two_samples():
    sequences = [sequence(10 + i, str(i // 2)) for i in range(8)]
    (step,) = plan(sequences, max_batch_tokens=1, together=True, micro_batch_size=4)
    [batches] = step.micro_batches
    assert [len(batch) for batch in batches] == [4, 4]
    assert all(batch[i] // 2 == batch[i + 1] // 2 for batch in batches for i in (0, 2))


def group_of(prompt: int, samples: int) -> Group:
    scored = group([1.0] * samples)
    return Group(replace(scored.prompt, index=prompt), scored.samples)


GROUPS = [group_of(4, 2), group_of(9, 3)]
"""Sequences 0 and 1 belong to prompt 4, sequences 2 to 4 to prompt 9."""


@pytest.mark.parametrize(
    ("steps", "data_ranks", "ranks"),
    [
        pytest.param([(((0, 1), (2, 3, 4)),)], [0], {4: [0], 9: [0]}, id="one rank"),
        pytest.param([(((0, 1),), ((2,), (3, 4)))], [0, 1], {4: [0], 9: [1]}, id="a group on each rank"),
        pytest.param([(((0, 2),), ((1, 3, 4),))], [0, 1], {4: [0, 1], 9: [0, 1]}, id="groups on both ranks"),
        pytest.param(
            [(((0, 1),), ((2, 3, 4),))], [0, 0, 1, 1], {4: [0, 1], 9: [2, 3]}, id="tensor parallelism"
        ),
        pytest.param(
            [(((0,),), ((1,),)), (((2, 3),), ((4,),))], [0, 1], {4: [0, 1], 9: [0, 1]}, id="two steps"
        ),
    ],
)
def test_ranks_by_prompt(
    steps: list[MicroBatches], data_ranks: list[int], ranks: dict[int, list[int]]
) -> None:
    train_steps = [TrainStep(micro_batches, {}) for micro_batches in steps]
    assert ranks_by_prompt(GROUPS, train_steps, data_ranks) == ranks


def sequence_of(tokens, execution, prompt=PROMPT):
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
        sequence_of(np.concatenate((prompt, rng.integers(0, 1000, RESPONSE))), f"{number}-{i}")
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
    pairs = [sequence_of(one.tokens, str(i // 2)) for i, one in enumerate(sequences)]
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
    sequences = [sequence_of(own, str(i // 2), prompt=1) for i, own in enumerate(tokens) if len(own) > 1]
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
