"""The distribution that tokens are drawn from."""

import numpy as np
import pytest
import torch

from rlrun.runner.engines.native.model import native_ops, sampling
from rlrun.runner.engines.native.model.sampling import Limits, allowed_tokens, uniform

Sample = type(sampling.sample)
VOCAB = 150  # neither a multiple of 64 nor of 16


@pytest.fixture(params=["torch", "kernels"])
def sample(request: pytest.FixtureRequest) -> object:
    """Returns `sample` of torch, then that of the kernels."""
    if request.param == "torch":
        return sampling.sample
    if not native_ops.load():
        pytest.skip("no C++ compiler here")
    return native_ops.sample


def logits_of(seed: int = 0, rows: int = 1, vocab: int = VOCAB, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def draw(
    sample: object, logits: torch.Tensor, count: int, temperature: float, limits: Limits | None = None
) -> torch.Tensor:
    """Tokens of `count` seeds from one row of logits."""
    assert callable(sample)
    tokens, _ = sample(
        logits.expand(count, -1).contiguous(),
        torch.full((count,), temperature),
        torch.arange(count),
        torch.full((count,), 17),
        limits and Limits(*(limit.expand(count, *limit.shape[1:]).contiguous() for limit in limits[:3])),
    )
    result: torch.Tensor = tokens
    return result


def chi_square(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Pearson's statistic in standard deviations from its mean; cells below 5 are pooled."""
    expected = probabilities.double() * len(tokens)
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    large = expected >= 5
    cells = torch.cat([expected[large], expected[~large].sum()[None]]).clamp(min=1e-9)
    seen = torch.cat([counts[large], counts[~large].sum()[None]])
    freedom = len(cells) - 1
    return float((((seen - cells) ** 2 / cells).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_tokens_follow_the_softmax(sample: object, temperature: float) -> None:
    logits = logits_of()
    tokens = draw(sample, logits, 40_000, temperature)
    assert abs(chi_square(tokens, (logits[0] / temperature).softmax(-1))) < 4


def test_tokens_follow_the_restricted_softmax(sample: object) -> None:
    logits = logits_of(1)
    limits = Limits(torch.tensor([0.8]), torch.tensor([20]), torch.zeros(1, VOCAB, dtype=torch.bool))
    mask = allowed_tokens(logits, limits)
    tokens = draw(sample, logits, 20_000, 1.0, limits)
    kept = torch.where(mask[0], logits[0].softmax(-1), 0.0)
    assert set(tokens.unique().tolist()) == set(mask[0].nonzero()[:, 0].tolist())
    assert abs(chi_square(tokens, kept / kept.sum())) < 4


def test_log_probs_are_of_the_whole_distribution(sample: object) -> None:
    assert callable(sample)
    logits = logits_of(2, rows=64, vocab=1000)
    temperatures = torch.linspace(0.3, 2, 64)
    forbidden = torch.rand(64, 1000, generator=torch.Generator().manual_seed(0)) < 0.7
    limits = Limits(torch.linspace(0.1, 1, 64), torch.arange(64) - 1, forbidden)
    tokens, log_probs = sample(logits, temperatures, torch.arange(64), torch.arange(64), limits)
    assert not forbidden.gather(1, tokens[:, None]).any()
    expected = (logits / temperatures[:, None]).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)


def test_temperature_zero_takes_the_likeliest_and_its_log_prob_at_one(sample: object) -> None:
    assert callable(sample)
    logits = logits_of(3, rows=20)
    tokens, log_probs = sample(logits, torch.zeros(20), torch.arange(20), torch.arange(20))
    assert tokens.tolist() == logits.argmax(-1).tolist()
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).amax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_and_torch_draw_the_same(dtype: torch.dtype) -> None:
    if not native_ops.load():
        pytest.skip("no C++ compiler here")
    logits = logits_of(4, rows=500, vocab=1003).to(dtype)
    inputs = (logits, torch.linspace(0.2, 3, 500), torch.arange(500) * 7919, torch.arange(500))
    limits = Limits(torch.linspace(0.05, 1, 500), torch.arange(500) % 50 - 1, logits > 3)
    for more in ((), (limits,), (limits._replace(top_ps=torch.ones(500)),)):
        ours, theirs = native_ops.sample(*inputs, *more), sampling.sample(*inputs, *more)
        assert ours[0].tolist() == theirs[0].tolist()
        torch.testing.assert_close(ours[1], theirs[1], atol=1e-5, rtol=1e-5)


def test_extreme_logits(sample: object) -> None:
    assert callable(sample)
    logits = torch.full((2, VOCAB), -1e4)
    logits[0, 77], logits[1, VOCAB - 1] = 1e4, 50.0
    tokens, log_probs = sample(logits, torch.ones(2), torch.arange(2), torch.arange(2))
    assert tokens.tolist() == [77, VOCAB - 1]
    assert log_probs.tolist() == [0.0, 0.0]


def test_randomness_depends_on_seed_and_position_alone() -> None:
    seeds, positions = torch.tensor([1, 1, 2, -(2**63)]), torch.tensor([5, 6, 5, 5])
    values = uniform(seeds, positions)
    assert len(set(values.tolist())) == 4
    assert uniform(seeds[2:3], positions[2:3]).item() == values[2].item()
    many = uniform(torch.arange(100_000) % 317, torch.arange(100_000))
    assert ((many > 0) & (many < 1)).all()
    counts = np.histogram(many.numpy(), bins=50, range=(0, 1))[0]
    assert abs(((counts - 2000) ** 2 / 2000).sum() - 49) < 4 * (2 * 49) ** 0.5


def test_masks_of_top_k_top_p_and_forbidden_tokens() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625]]).log().repeat(5, 1)
    forbidden = torch.zeros(5, 5, dtype=torch.bool)
    forbidden[4, 0] = True
    top_p, top_k = torch.tensor([0.5, 0.75, 1.0, 0.9, 1.0]), torch.tensor([-1, -1, 3, 2, 1])
    mask = allowed_tokens(logits, Limits(top_p, top_k, forbidden))
    assert mask.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 0, 0, 0],
    ]


@pytest.fixture(params=["kernels", "torch"])
def sample_with_masks(request: pytest.FixtureRequest) -> object:
    if request.param == "torch":
        return sampling.sample_with_masks
    if not native_ops.load():
        pytest.skip("no C++ compiler here")
    return native_ops.sample_with_masks


def test_masks_are_what_was_drawn_from_and_log_probs_are_over_them(sample_with_masks: object) -> None:
    assert callable(sample_with_masks)
    logits = logits_of(5, rows=200, vocab=1003)
    temperatures = torch.linspace(0.3, 2, 200)
    forbidden = torch.rand(200, 1003, generator=torch.Generator().manual_seed(0)) < 0.1
    limits = Limits(torch.linspace(0.1, 1, 200), torch.arange(200) % 50 - 1, forbidden)
    inputs = (logits, temperatures, torch.arange(200), torch.arange(200))
    tokens, log_probs, masks = sample_with_masks(*inputs, limits)
    scaled = logits / temperatures[:, None]
    allowed = allowed_tokens(scaled, limits)
    limited = (limits.top_ps < 1) | (limits.top_ks > 0)
    assert masks.lengths.tolist() == (allowed.sum(-1) * limited).tolist()
    assert masks.ids.tolist() == (allowed & limited[:, None]).nonzero()[:, 1].tolist()
    over_mask = scaled.masked_fill(~allowed & limited[:, None], -torch.inf).log_softmax(-1)
    expected = over_mask.gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(masks.log_probs, expected, atol=1e-5, rtol=1e-5)
    plain = (native_ops if sample_with_masks is native_ops.sample_with_masks else sampling).sample
    again = plain(*inputs, limits)
    assert torch.equal(tokens, again[0]) and torch.equal(log_probs, again[1])


def test_the_mask_of_a_greedy_token_is_the_token(sample_with_masks: object) -> None:
    assert callable(sample_with_masks)
    logits = logits_of(6, rows=3)
    limits = Limits(torch.tensor([0.9, 0.9, 1.0]), torch.tensor([5, -1, -1]), torch.zeros(3, VOCAB) > 0)
    tokens, log_probs, masks = sample_with_masks(logits, torch.zeros(3), *[torch.arange(3)] * 2, limits)
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert masks.lengths.tolist() == [1, 1, 0]
    assert masks.ids.tolist() == tokens[:2].tolist()
    assert masks.log_probs.tolist() == [0.0, 0.0, log_probs[2].item()]
