"""The forest of sequences that share prefixes: every token once, and every sequence found again."""

from itertools import pairwise

import numpy as np
import pytest

from rlrun.runner.batches.prefixes import cut_branches, forest_size, separate_forest, shared_forest
from tests.runner.batches.forests import random_sequences


def prefixes(sequences):
    return {tuple(sequence[: n + 1]) for sequence in sequences for n in range(len(sequence))}


def ancestors(forest):
    """`[T, T]`: whether key k is on the path of some sequence to query q, by following the paths."""
    sees = np.zeros((len(forest.tokens),) * 2, bool)
    for path in forest.paths:
        sees[path[:, None], path] |= np.tri(len(path), dtype=bool)
    return sees


@pytest.mark.parametrize("seed", range(40))
def test_sequences_are_found_again_and_each_prefix_exists_once(seed):
    sequences = random_sequences(np.random.default_rng(seed))
    forest = shared_forest(sequences, shortest=1, least_share=0)
    for sequence, path in zip(sequences, forest.paths, strict=True):
        assert (forest.tokens[path] == sequence).all()
        assert (forest.positions[path] == np.arange(len(sequence))).all()
    assert len(forest.tokens) == len(prefixes(sequences)) == forest_size(sequences, shortest=1, least_share=0)
    assert sum(forest.trees) == len(forest.tokens)


@pytest.mark.parametrize("shortest", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_ends_say_which_keys_a_query_sees(seed, shortest):
    forest = shared_forest(random_sequences(np.random.default_rng(seed)), shortest, 0)
    index = np.arange(len(forest.tokens))
    assert (((index[:, None] >= index) & (index[:, None] < forest.ends)) == ancestors(forest)).all()
    tree = np.repeat(np.arange(len(forest.trees)), forest.trees)
    assert not (ancestors(forest) & (tree[:, None] != tree)).any()


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_the_sequences_does_not_change_the_forest(seed):
    rng = np.random.default_rng(seed)
    sequences = random_sequences(rng)
    order = rng.permutation(len(sequences))
    one, two = shared_forest(sequences, 1, 0), shared_forest([sequences[i] for i in order], 1, 0)
    assert (one.tokens == two.tokens).all() and (one.ends == two.ends).all()
    for place, index in enumerate(order):
        assert (two.paths[place] == one.paths[index]).all()


def test_the_example_of_the_module():
    a, b, x, y, c, d = range(6)
    forest = shared_forest([np.array(s, np.int32) for s in ([a, b, c, d], [a, b, x, y], [a, b])], 1, 0)
    assert forest.tokens.tolist() == [a, b, x, y, c, d]
    assert forest.positions.tolist() == [0, 1, 2, 3, 2, 3]
    assert forest.ends.tolist() == [6, 6, 4, 4, 6, 6]
    assert forest.trees == (6,)


def test_short_prefixes_are_not_shared_and_separate_sequences_keep_their_order():
    sequences = [np.array([7, 1, 2], np.int32), np.array([7, 1, 3, 4], np.int32)]
    assert shared_forest(sequences, 3).trees == separate_forest(sequences).trees == (3, 4)
    assert shared_forest(sequences, 2).trees == (5,)
    assert separate_forest(sequences[::-1]).tokens.tolist() == [7, 1, 3, 4, 7, 1, 2]
    assert shared_forest([]).trees == separate_forest([]).trees == ()


def test_a_prefix_that_is_a_small_share_of_a_sequence_is_not_shared():
    """Each sequence counts by itself: of a group, short responses share the prompt."""
    prompt = np.arange(40)
    group = [np.concatenate((prompt, np.full(n, 100 + n))).astype(np.int32) for n in (300, 361, 500, 10)]
    assert shared_forest(group[:2]).trees == (340, 401)  # 40 of 401 tokens would be shared
    assert shared_forest(group[1::-1]).trees == (340, 401)
    assert shared_forest([group[0], group[3]]).trees == (350,)
    assert sorted(shared_forest(group).trees) == [350, 401, 540]
    assert forest_size(group) == 350 + 401 + 540


def test_large_tokens_are_sorted_as_numbers():
    sequences = [np.array([n, n], np.int32) for n in (65536, 255, 256, 1)]
    assert shared_forest(sequences, 1, 0).tokens.tolist() == [1, 1, 255, 255, 256, 256, 65536, 65536]


def seen(ends):
    """`[T, T]`: how often each query sees each key, over the segments and all levels."""
    lengths, levels = cut_branches(ends)
    times = np.zeros((len(ends),) * 2, int)
    starts = np.cumsum([0, *lengths])
    for start, stop in pairwise(starts):
        times[start:stop, start:stop] += np.tri(stop - start, dtype=int)
    for level in levels:
        queries = np.split(level.queries, np.cumsum(level.query_lengths)[:-1])
        keys = np.split(level.keys, np.cumsum(level.key_lengths)[:-1])
        for own, visible in zip(queries, keys, strict=True):
            times[np.ix_(own, visible)] += 1
    return times


@pytest.mark.parametrize("seed", range(40))
def test_every_visible_key_is_seen_once(seed):
    ends = shared_forest(random_sequences(np.random.default_rng(seed)), shortest=1, least_share=0).ends
    index = np.arange(len(ends))
    visible = (index[:, None] >= index) & (index[:, None] < ends)
    assert (seen(ends) == visible).all()


@pytest.mark.parametrize("seed", range(10))
def test_a_query_is_once_in_a_level(seed):
    ends = shared_forest(random_sequences(np.random.default_rng(seed)), shortest=1, least_share=0).ends
    for level in cut_branches(ends)[1]:
        assert len(np.unique(level.queries)) == len(level.queries)
        assert len(np.unique(level.keys)) == len(level.keys)


def test_groups_have_one_level_and_separate_sequences_none():
    prompt = np.arange(40, dtype=np.int32)
    group = [np.concatenate((prompt, [100 + i])).astype(np.int32) for i in range(4)]
    lengths, [level] = cut_branches(shared_forest([*group, prompt + 50]).ends)
    assert lengths == [40, 1, 1, 1, 1, 40]
    assert (level.query_lengths, level.key_lengths) == ([4], [40])
    assert cut_branches(shared_forest([prompt, prompt + 50]).ends)[1] == []
