"""Attention within trees of sequences that share prefixes, against each sequence by itself in float64."""

import numpy as np
import pytest
import torch

from rlrun.runner.batches.prefixes import shared_forest
from rlrun.runner.trainer.ops.attention import packed_attention
from tests.runner.batches.forests import random_sequences

TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 3e-2}


def gathered(forest, q, k, v, *, scale, sinks=None):
    """Attention of every sequence by itself, in its token's rows of the forest; each row comes from one
    sequence.
    """
    output = [None] * len(forest.tokens)
    for place in forest.paths:
        rows = torch.from_numpy(place)
        attended = packed_attention(q[rows], k[rows], v[rows], [len(rows)], scale, None, sinks)
        for row, values in zip(place.tolist(), attended.unbind(), strict=True):
            output[row] = values if output[row] is None else output[row]
    return torch.stack(output)


def differences(forest, dtype, *, sinks=False, heads=(4, 2), width=16):
    """Largest differences of output and gradients from float64, relative to the largest value."""
    torch.manual_seed(0)
    shapes = [(len(forest.tokens), n, width) for n in (heads[0], heads[1], heads[1])]
    exact = [torch.randn(shape, dtype=torch.float64).to(dtype).double() for shape in shapes]
    exact += [torch.randn(heads[0], dtype=torch.float64).to(dtype).double()] if sinks else []
    gradient = torch.randn(shapes[0], dtype=torch.float64)
    ends = torch.from_numpy(forest.ends)

    def run(inputs, attention):
        inputs = [x.requires_grad_() for x in inputs]
        output = attention(inputs)
        return [output.detach(), *torch.autograd.grad(output, inputs, gradient.to(output.dtype))]

    want = run(
        [x.clone() for x in exact],
        lambda x: gathered(forest, *x[:3], scale=0.3, sinks=x[3] if sinks else None),
    )
    got = run(
        [x.to(dtype) for x in exact],
        lambda x: packed_attention(*x[:3], forest.trees, 0.3, None, x[3] if sinks else None, ends),
    )
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_random_forests(path, dtype, seed):
    sequences = random_sequences(np.random.default_rng(seed), count=8, longest=90, vocabulary=3)
    assert differences(shared_forest(sequences, shortest=1, least_share=0), dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize("prompt, responses", [(32, [32, 64]), (70, [1, 5, 90, 33]), (31, [1] * 40)])
def test_groups_at_the_borders_of_blocks(path, prompt, responses):
    rng = np.random.default_rng(0)
    stem = rng.integers(0, 9, prompt).astype(np.int32)
    sequences = [np.concatenate((stem, rng.integers(0, 9, n))).astype(np.int32) for n in responses]
    assert differences(shared_forest(sequences), torch.float32) < TOLERANCE[torch.float32]


def test_sinks(path):
    sequences = random_sequences(np.random.default_rng(3), count=6, longest=60)
    assert differences(shared_forest(sequences, 1, 0), torch.float32, sinks=True) < TOLERANCE[torch.float32]


def test_a_branch_does_not_change_with_its_siblings(path):
    """Another branch changes neither output nor gradients of a branch by a bit."""
    torch.manual_seed(0)
    ends = torch.tensor([70] * 20 + [50] * 30 + [70] * 20, dtype=torch.int32)
    inputs = [torch.randn(70, 2, 16) for _ in range(3)]
    outputs = []
    for _ in range(2):
        leaves = [x.clone().requires_grad_() for x in inputs]
        y = packed_attention(*leaves, [70], 0.3, ends=ends)
        outputs.append((y[50:].detach(), *torch.autograd.grad(y[50:].sum(), leaves)))
        for x in inputs:
            x[20:50] = torch.randn(30, 2, 16)
    for before, after in zip(*outputs, strict=True):
        assert (before == after).all()
        assert (before[20:50] == 0).all() or len(before) == 20
