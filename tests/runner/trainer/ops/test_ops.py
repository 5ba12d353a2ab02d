"""Compiled operators and their plain torch stand-ins, each against float64, forward and backward."""

import pytest
import torch
from torch.nn import functional

from rlrun.runner.trainer.ops import library
from rlrun.runner.trainer.ops.attention import packed_attention
from rlrun.runner.trainer.ops.elementwise import rms_norm, rotate, silu_mul
from rlrun.runner.trainer.ops.softmax import log_softmax, softmax_gradients_

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
LENGTHS = (1, 31, 32, 33, 70, 5)


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


def angles(tokens, width):
    theta = torch.randn(tokens, width // 2).repeat(1, 2)
    return torch.stack((theta.cos(), theta.sin()), 1)


def dense_attention(query, key, value, lengths, scale, window=None, sinks=None):  # noqa: PLR0917
    """One softmax over all pairs of tokens, masked to earlier ones of the document, within the window."""
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    order = torch.arange(len(document))
    mask = (document[:, None] == document) & (order[:, None] >= order)
    mask &= order[:, None] - order < (window or len(order))
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.einsum("qnh,knh->nqk", query, key) * scale
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(*scores.shape[:2], 1)), dim=-1)
    weights = scores.softmax(-1)[..., : len(order)]
    return torch.einsum("nqk,knh->qnh", weights, value)


def agree(ours, plain, inputs, dtype):
    """Outputs and gradients of `ours` on `dtype` inputs are those of `plain` in float64."""
    rounded = [x.detach().to(dtype).requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in rounded]
    result, expected = ours(*rounded), plain(*exact)
    assert result.dtype == dtype
    gradient = torch.randn(expected.shape, dtype=torch.float64).to(dtype)
    gradients = torch.autograd.grad(result, rounded, gradient)
    references = torch.autograd.grad(expected, exact, gradient.double())
    for got, want in zip((result, *gradients), (expected, *references), strict=True):
        error = (got.double() - want).norm() / want.norm()
        assert error.item() < TOLERANCE[dtype]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [8, 64, 100])
def test_rms_norm(path, dtype, width):
    agree(
        lambda x, w: rms_norm(x, w, 1e-6),
        lambda x, w: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w,
        [leaf(7, 3, width), leaf(width)],
        dtype,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [8, 64])
def test_rotate(path, dtype, width):
    table = angles(9, width)

    def plain(x):
        turned = (
            torch.complex(*x.chunk(2, -1))
            * torch.complex(*table[..., : width // 2].double().unbind(1))[:, None]
        )
        return torch.cat((turned.real, turned.imag), -1)

    agree(lambda x: rotate(x, table), plain, [leaf(9, 3, width)], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_silu_mul(path, dtype):
    agree(silu_mul, lambda g, u: functional.silu(g) * u, [leaf(5, 37) * 20, leaf(5, 37)], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 64), (3, 3, 8), (6, 1, 20)])
def test_packed_attention(path, dtype, heads, kv_heads, width):
    tokens = sum(LENGTHS)
    agree(
        lambda q, k, v: packed_attention(q, k, v, LENGTHS, width**-0.5),
        lambda q, k, v: dense_attention(q, k, v, LENGTHS, width**-0.5),
        [leaf(tokens, heads, width), leaf(tokens, kv_heads, width), leaf(tokens, kv_heads, width)],
        dtype,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [2, 7, 32, 33, 100, None])
def test_windows_and_sinks(path, dtype, window):
    tokens, scale = sum(LENGTHS), 0.4
    inputs = [leaf(tokens, 4, 16), leaf(tokens, 2, 16), leaf(tokens, 2, 16)]
    agree(
        lambda q, k, v: packed_attention(q, k, v, LENGTHS, scale, window),
        lambda q, k, v: dense_attention(q, k, v, LENGTHS, scale, window),
        inputs,
        dtype,
    )
    agree(
        lambda q, k, v, s: packed_attention(q, k, v, LENGTHS, scale, window, s),
        lambda q, k, v, s: dense_attention(q, k, v, LENGTHS, scale, window, s),
        [*inputs, leaf(4)],
        dtype,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_packed_attention_reads_strided_views(path, dtype):
    def split(x):
        return packed_attention(*x.split((2, 1, 1), 1), LENGTHS, 0.3)

    def plain(x):
        return dense_attention(*x.split((2, 1, 1), 1), LENGTHS, 0.3)

    agree(split, plain, [leaf(sum(LENGTHS), 4, 16)], dtype)


def test_documents_do_not_see_each_other(path):
    q, k, v = (leaf(sum(LENGTHS), 2, 16, dtype=torch.float32).detach() for _ in range(3))
    before = packed_attention(q, k, v, LENGTHS, 0.25).split(LENGTHS)
    for x in (q, k, v):
        x.split(LENGTHS)[2].normal_()
    after = packed_attention(q, k, v, LENGTHS, 0.25).split(LENGTHS)
    assert [torch.equal(x, y) for x, y in zip(before, after, strict=True)] == [
        i != 2 for i in range(len(LENGTHS))
    ]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("vocabulary", [50, 512])
def test_softmax(path, dtype, vocabulary):
    temperature, rows = 0.7, 9
    logits = (leaf(rows, vocabulary) * 5).detach().to(dtype)
    targets = torch.randint(vocabulary, (rows,))
    exact = logits.double().requires_grad_()
    log_probs = (exact / temperature).log_softmax(-1)
    chosen, entropy = log_probs.gather(1, targets[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(1)

    results = log_softmax(logits, targets, temperature)
    log_sums = results[1]
    z = exact / temperature
    expected = chosen, z.logsumexp(1), entropy, z.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(results, torch.stack(expected).detach().float(), atol=1e-5, rtol=1e-5)

    gradients, entropy_gradients, ours = (
        torch.randn(rows),
        torch.randn(rows),
        (torch.arange(rows) % 3 > 0).float(),
    )
    for entropies, entropy_part in ((None, None), (entropy.detach().float(), entropy_gradients)):
        written = softmax_gradients_(
            logits.clone(),
            targets,
            ours=ours,
            log_sums=log_sums,
            log_prob_gradients=gradients,
            entropies=entropies,
            entropy_gradients=entropy_part,
            temperature=temperature,
        )
        # where the target is another rank's, only the denominator has a gradient
        loss = (
            gradients * (chosen - (1 - ours) * exact.gather(1, targets[:, None])[:, 0] / temperature)
        ).sum()
        if entropy_part is not None:
            loss = loss + (entropy_part * entropy).sum()
        (expected,) = torch.autograd.grad(loss, exact, retain_graph=True)
        assert float((written.double() - expected).norm() / expected.norm()) < TOLERANCE[dtype] * 5


def test_plain_torch_has_exact_gradients():
    table = angles(6, 8).double()
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-6), (leaf(3, 8), leaf(8)))
    assert torch.autograd.gradcheck(lambda x: rotate(x, table), leaf(6, 2, 8), atol=1e-4, eps=1e-3)
    assert torch.autograd.gradcheck(silu_mul, (leaf(3, 8), leaf(3, 8)))
    q, k, v = leaf(6, 2, 4), leaf(6, 1, 4), leaf(6, 1, 4)
    assert torch.autograd.gradcheck(lambda q, k, v: packed_attention(q, k, v, (2, 4), 0.5), (q, k, v))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_same_twice(dtype):
    if not library.load():
        pytest.skip("no C++ compiler")

    def run():
        torch.manual_seed(1)
        x, weight = leaf(4000, 64, dtype=dtype), leaf(64, dtype=dtype)
        q = rms_norm(x, weight, 1e-6).view(-1, 2, 32)
        loss = packed_attention(q, q, q, [250] * 16, 0.2).float().square().sum()
        return torch.autograd.grad(loss, (x, weight))

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    first, second = run(), run()
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_nan_is_not_hidden(path):
    x = torch.full((2, 16), torch.nan)
    assert silu_mul(x, x).isnan().all()
    assert rms_norm(x, torch.ones(16), 1e-6).isnan().all()
    q = torch.full((4, 1, 16), torch.nan)
    assert packed_attention(q, q, q, [4], 1.0).isnan().all()
    assert log_softmax(x, torch.zeros(2, dtype=torch.int64), 1.0).isnan().all()


def test_lengths_that_do_not_fit_are_refused():
    if not library.load():
        pytest.skip("no C++ compiler")
    q = torch.zeros(8, 1, 16)
    with pytest.raises(RuntimeError, match="lengths"):
        packed_attention(q, q, q, [4, 5], 1.0)
