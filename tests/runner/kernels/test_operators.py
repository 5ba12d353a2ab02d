"""Each operator computes what it should, and the same bits for a row in every batch."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from rlrun.runner.batches.prefixes import shared_forest
from rlrun.runner.kernels.operators import load, operators

FLOAT_TYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
GROUPS = ((0, 1), (3, 4), (5, 18), (0, 50), (40, 61), (0, 61))
"""Parts of 61 rows."""


@pytest.fixture(autouse=True, scope="module")
def _operators() -> None:
    if not load():
        pytest.skip("no C++ compiler")
    torch.manual_seed(0)


def assert_close(ours: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), expected.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 64), (130, 200), (2, 1), (1000, 65)])
def test_linear(dtype: torch.dtype, inputs: int, outputs: int) -> None:
    x, weight = torch.randn(61, inputs).to(dtype), (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    bias, packed = torch.randn(outputs).to(dtype), operators.pack(weight)
    ours = operators.linear(x, packed, bias, False)
    assert_close(ours, linear(x.double(), weight.double(), bias.double()))
    wide = operators.linear(x, packed, None, True)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide, linear(x.float(), weight.float()), atol=2e-5, rtol=2e-5)
    for first, end in GROUPS:
        for matrix in (packed, weight):
            assert torch.equal(operators.linear(x[first:end], matrix, bias, False), ours[first:end])


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_rows(dtype: torch.dtype) -> None:
    x, weight = torch.randn(61, 75).to(dtype), torch.randn(75).to(dtype)
    normed, scales = operators.rms_norm(x, weight, 1e-6)
    wide = x.double()
    scale = (wide.square().mean(-1) + 1e-6).rsqrt()
    assert_close(normed, wide * scale[:, None] * weight.double())
    torch.testing.assert_close(scales.double(), scale)
    gate, up = torch.randn(61, 150).to(dtype).chunk(2, -1)
    product = operators.silu_mul(gate, up)
    assert_close(product, silu(gate.double()) * up.double())
    for first, end in GROUPS:
        assert torch.equal(operators.rms_norm(x[first:end], weight, 1e-6)[0], normed[first:end])
        assert torch.equal(operators.silu_mul(gate[first:end], up[first:end]), product[first:end])


def test_rotation_has_the_trainers_convention() -> None:
    x, angles = torch.randn(61, 3, 32), torch.randn(61, 16)
    first, second = x.chunk(2, -1)
    cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
    expected = torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)
    assert_close(operators.rotate(x, angles.cos(), angles.sin(), False), expected)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("vocab", [7, 320, 333])
def test_log_softmax(dtype: torch.dtype, vocab: int) -> None:
    logits, tokens = (9 * torch.randn(61, vocab)).to(dtype), torch.randint(vocab, (61,))
    temperatures = torch.rand(61) + 0.5
    ours = operators.log_softmax(logits, tokens, temperatures)
    z = logits.double() / temperatures.double()[:, None]
    log_probs = z.log_softmax(-1)
    chosen, chosen_z = (x.gather(1, tokens[:, None])[:, 0] for x in (log_probs, z))
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    expected = torch.stack((chosen, z.logsumexp(-1), entropy, chosen_z))
    torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=1e-5)
    for first, end in GROUPS:
        part = operators.log_softmax(logits[first:end], tokens[first:end], temperatures[first:end])
        assert torch.equal(part, ours[:, first:end])


def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = (x.double().transpose(0, 1)[None] for x in (q, k, v))
    return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def qkv(tokens: int, dtype: torch.dtype, dim: int = 80) -> tuple[Tensor, Tensor, Tensor]:
    packed = torch.randn(tokens, 8, dim).to(dtype)
    q, k, v = packed.split((4, 2, 2), 1)
    return q, k, v


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_attention_of_documents(dtype: torch.dtype) -> None:
    lengths = [1, 16, 17, 100, 33]
    parts = qkv(sum(lengths), dtype)
    output, log_sums = operators.attention(*parts, lengths, None, 80**-0.5)
    assert log_sums.shape == (4, sum(lengths))
    for document, ours in zip(
        zip(*(x.split(lengths) for x in parts), strict=True), output.split(lengths), strict=True
    ):
        assert_close(ours, reference(*document))
        alone, _ = operators.attention(*document, [len(ours)], None, 80**-0.5)
        assert torch.equal(alone, ours)
        cut = [x[: len(ours) // 2 + 1] for x in document]
        assert torch.equal(operators.attention(*cut, [len(cut[0])], None, 80**-0.5)[0], ours[: len(cut[0])])


@pytest.mark.parametrize("seed", range(8))
def test_attention_of_random_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 9, 40)]
    for _ in range(12):
        stem = sequences[rng.integers(len(sequences))]
        cut = rng.integers(1, len(stem) + 1)
        sequences.append(np.concatenate([stem[:cut], rng.integers(0, 9, rng.integers(1, 60))]))
    forest = shared_forest([one.astype(np.int32) for one in sequences])
    assert len(forest.tokens) < sum(map(len, sequences))
    q, k, v = qkv(len(forest.tokens), torch.float32, 32)
    ends = torch.from_numpy(forest.ends).int()
    shared, log_sums = operators.attention(q, k, v, list(forest.trees), ends, 32**-0.5)
    for path in map(torch.from_numpy, forest.paths):
        alone, own = operators.attention(q[path], k[path], v[path], [len(path)], None, 32**-0.5)
        assert torch.equal(alone, shared[path])
        assert torch.equal(own, log_sums[:, path])
