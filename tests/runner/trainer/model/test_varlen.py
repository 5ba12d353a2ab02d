"""Trees on GPUs: several calls of the variable-length kernel, merged, against each sequence by itself.

The kernel exists only on CUDA; a plain one with the same contract takes its place, in float64.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

from rlrun.runner.batches.prefixes import shared_forest
from rlrun.runner.trainer.model import varlen
from rlrun.runner.trainer.model.varlen import Branches, Spans, varlen_attention
from tests.runner.batches.forests import random_sequences
from tests.runner.trainer.ops.test_tree_attention import gathered

SCALE = 0.3
CPU = torch.device("cpu")


def visible(queries, keys, sides):
    """`[queries, keys]`: what a document's queries see, its last query aligned with its last key."""
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    before, after = sides
    return (distance >= -after) & ((before < 0) | (distance <= before))


def documents(query, key, value, call):
    """Yields each document's rows, its keys and values for every head, and the softmax's arguments."""
    heads = query.shape[1]
    ends, key_ends = call.query_offsets.tolist(), call.key_offsets.tolist()
    lengths = [stop - start for start, stop in (*pairwise(ends), *pairwise(key_ends))]
    assert (ends[0], ends[-1], key_ends[-1]) == (0, len(query), len(key))
    assert min(lengths) > 0, "the kernels' results for documents without keys differ"
    assert max(call.longest_queries, call.longest_keys) == max(lengths)
    for (start, stop), (first, last) in zip(pairwise(ends), pairwise(key_ends), strict=True):
        rows, columns = slice(start, stop), slice(first, last)
        k, v = (x[columns].repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
        scores = torch.einsum("qnh,knh->nqk", query[rows], k) * call.scale
        hidden = ~visible(stop - start, last - first, call.sides)
        yield rows, columns, k, v, scores.masked_fill(hidden, -torch.inf)


def plain_forward(query, key, value, call):
    output = torch.zeros_like(query)
    log_sums = torch.zeros(query.shape[1], len(query), dtype=query.dtype)
    for rows, _, _, v, scores in documents(query, key, value, call):
        output[rows] = torch.einsum("nqk,knh->qnh", scores.softmax(-1), v)
        log_sums[:, rows] = scores.logsumexp(-1)
    return output, log_sums


def plain_backward(grad, query, key, value, output, log_sums, call):  # noqa: PLR0917
    """Flash attention's backward pass, which reads output and log-sum-exp."""
    assert all(x.is_contiguous() for x in (grad, output, log_sums))
    gradients = [torch.zeros_like(x) for x in (query, key, value)]
    group = query.shape[1] // key.shape[1]
    dots = (grad * output).sum(-1).t()
    for rows, columns, k, v, scores in documents(query, key, value, call):
        weights = (scores - log_sums[:, rows, None]).exp()
        inner = torch.einsum("qnh,knh->nqk", grad[rows], v)
        d_scores = weights * (inner - dots[:, rows, None]) * call.scale
        gradients[0][rows] = torch.einsum("nqk,knh->qnh", d_scores, k)
        for gradient, factor, x in ((gradients[1], d_scores, query), (gradients[2], weights, grad)):
            wide = torch.einsum("nqk,qnh->knh", factor, x[rows])
            gradient[columns] = wide.unflatten(1, (-1, group)).sum(2)
    return tuple(gradients)


@pytest.fixture(autouse=True)
def plain_kernel(monkeypatch):
    monkeypatch.setattr(varlen, "varlen_forward", plain_forward)
    monkeypatch.setattr(varlen, "varlen_backward", plain_backward)


def check(forest, *, sinks=False):
    """Compares output and gradients with those of every sequence by itself."""
    torch.manual_seed(0)
    shapes = [(len(forest.tokens), heads, 16) for heads in (4, 2, 2)] + [(4,)] * sinks
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    gradient = torch.randn(shapes[0], dtype=torch.float64)
    branches = Branches.of(forest.ends, CPU)
    own_sinks = inputs[3] if sinks else None
    found = varlen_attention(*inputs[:3], branches.segments.call(SCALE), own_sinks, branches.levels)
    expected = gathered(forest, *inputs[:3], scale=SCALE, sinks=own_sinks)
    pairs = [(found, expected)]
    pairs += zip(*(torch.autograd.grad(y, inputs, gradient) for y in (found, expected)), strict=True)
    for own, other in ([x.detach() for x in pair] for pair in pairs):
        tolerance = 1e-6 if sinks else 1e-12  # sinks are float32
        torch.testing.assert_close(own, other, rtol=0, atol=tolerance * float(other.abs().max()))


@pytest.mark.parametrize("seed", range(12))
def test_random_trees(seed):
    check(
        shared_forest(random_sequences(np.random.default_rng(seed), count=8, longest=60, vocabulary=3), 1, 0)
    )


@pytest.mark.parametrize("responses", [(1, 1), (5, 30, 1, 12), (40,) * 8], ids=str)
def test_groups(responses):
    rng = np.random.default_rng(0)
    stem = rng.integers(0, 9, 40).astype(np.int32)
    sequences = [np.concatenate((stem, rng.integers(0, 9, n))).astype(np.int32) for n in responses]
    check(shared_forest([*sequences, stem + 20]))


def test_sinks():
    sequences = random_sequences(np.random.default_rng(3), count=6, longest=60)
    check(shared_forest(sequences, 1, 0), sinks=True)


def test_sinks_and_windows_without_trees():
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in ((20, 4, 16), (20, 2, 16), (20, 2, 16))]
    sinks, spans = torch.randn(4, dtype=torch.float64), Spans.of([12, 8], [12, 8], CPU)
    found = varlen_attention(*inputs, spans.call(SCALE, 5), sinks)
    expected = varlen.with_sinks(*plain_forward(*inputs, spans.call(SCALE, 5)), sinks)[0]
    torch.testing.assert_close(found, expected)


def test_a_call_for_a_level_sees_all_keys_and_keeps_away_from_cudnn():
    call = Spans.of([3, 2], [7, 9], CPU).call(SCALE, causal=False)
    assert call.sides == [-1, 9]
    assert all(visible(queries, keys, call.sides).all() for queries, keys in ((3, 7), (2, 9), (9, 2)))
