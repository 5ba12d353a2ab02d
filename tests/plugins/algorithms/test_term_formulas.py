"""Every term around a policy loss against its definition, token by token in Python's own floats."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms.correction import Correction
from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.testing import group, micro_batch
from rlrun.plugins.types import LossInputs

LENGTHS = [4, 1, 6, 3]
ADVANTAGES = [0.8, -0.5, -1.2, -0.3]


class Samples:
    """Log-probs of four samples; some tokens are masked, some lie far from the engine's."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.mask = [[1.0, 0.0, 1.0, 1.0], [1.0], [1.0, 1.0, 0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
        self.old, self.new, self.engine, self.reference = (
            [list(-np.abs(rng.normal(1.0, scale, length))) for length in LENGTHS]
            for scale in (0.5, 0.6, 0.7, 0.5)
        )
        self.engine[2][3] = self.old[2][3] + 12.0

    def inputs(self) -> LossInputs:
        def flat(rows: list[list[float]]) -> torch.Tensor:
            return torch.tensor([value for row in rows for value in row], dtype=torch.float64)

        new = flat(self.new).requires_grad_()
        return LossInputs(
            log_probs=new,
            entropy=torch.zeros_like(new.detach()),
            old_log_probs=flat(self.old),
            rollout_log_probs=flat(self.engine),
            reference_log_probs=flat(self.reference),
            advantages=flat([[a] * length for a, length in zip(ADVANTAGES, LENGTHS, strict=True)]),
            mask=flat(self.mask),
            sample=torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS)),
            num_samples=4,
        )


def surrogate(new: float, old: float, advantage: float) -> float:
    ratio = math.exp(new - old)
    return -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)


def gradient(new: float, old: float, advantage: float) -> float:
    """The surrogate's derivative for the new log-prob: none where the clipped ratio is the smaller one."""
    ratio = math.exp(new - old)
    clipped = ratio > 1.2 if advantage > 0 else ratio < 0.8
    return 0.0 if clipped else -ratio * advantage


def check(params: dict[str, Any], weight: Any) -> None:
    """GRPO's loss of each token, and its derivative, are those without `params` times `weight(samples, i, t)`
    of the t-th token of sample i, which has no derivative.
    """
    samples = Samples()
    places = [(i, t) for i, length in enumerate(LENGTHS) for t in range(length)]
    weights = [weight(samples, i, t) for i, t in places]
    tokens = [(samples.new[i][t], samples.old[i][t], ADVANTAGES[i]) for i, t in places]
    losses, gradients = loss_of(params)
    assert losses == pytest.approx([surrogate(*one) * w for one, w in zip(tokens, weights, strict=True)])
    assert gradients == pytest.approx([gradient(*one) * w for one, w in zip(tokens, weights, strict=True)])


def loss_of(params: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Each token's loss and its derivative for the token's log-prob."""
    inputs = Samples().inputs()
    loss = build("algorithms", "grpo", params).loss(inputs).loss
    loss.sum().backward()
    assert inputs.log_probs.grad is not None
    return loss.tolist(), inputs.log_probs.grad.tolist()


def log_ratio(samples: Samples, i: int, t: int, level: str) -> float:
    """Returns the log of the ratio of trainer to engine: of a token, or the sum or mean over its sample."""
    own = [old - engine for old, engine in zip(samples.old[i], samples.engine[i], strict=True)]
    if level == "token":
        return own[t]
    total = sum(value for value, counts in zip(own, samples.mask[i], strict=True) if counts)
    return total if level == "sequence" else total / sum(samples.mask[i])


def ratio(samples: Samples, i: int, t: int, level: str) -> float:
    return math.exp(min(max(log_ratio(samples, i, t, level), -20.0), 20.0))


@pytest.mark.parametrize("high", [1.1, 2.0])
def test_truncated_importance_sampling(high: float) -> None:
    """TIS: min(π_trainer / π_engine, C)."""
    correction = {"type": "tis", "high": high}
    check({"correction": correction}, lambda s, i, t: min(ratio(s, i, t, "token"), high))


def test_icepop() -> None:
    """IcePop: the ratio within [α, β], and 0 outside."""

    def weight(samples: Samples, i: int, t: int) -> float:
        value = ratio(samples, i, t, "token")
        return value if 0.5 <= value <= 1.5 else 0.0

    check({"correction": {"type": "icepop", "low": 0.5, "high": 1.5}}, weight)


@pytest.mark.parametrize("veto", [None, 1e-4])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["truncate", "clip", "mask"])
def test_masked_importance_sampling(level: str, mode: str, veto: float | None) -> None:
    """MIS at each level in each mode; a sample with a trained token below the veto counts for nothing."""

    def weight(samples: Samples, i: int, t: int) -> float:
        trained = [u for u, counts in enumerate(samples.mask[i]) if counts]
        if veto is not None and any(ratio(samples, i, u, "token") < veto for u in trained):
            return 0.0
        value = ratio(samples, i, t, level)
        bounded = {"truncate": min(value, 1.4), "clip": min(max(value, 0.6), 1.4)}
        return bounded.get(mode, value if 0.6 <= value <= 1.4 else 0.0)

    bounds = {"high": 1.4} if mode == "truncate" else {"low": 0.6, "high": 1.4}
    more = {} if veto is None else {"veto": veto}
    check({"correction": {"type": "mis", "level": level, "mode": mode, **bounds, **more}}, weight)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("rejected_by", ["token", "sequence", "geometric", "outlier"])
def test_rejection_has_its_own_level_and_bounds(level: str, rejected_by: str) -> None:
    """MIS with rejection sampling: weights are truncated, and tokens outside of other bounds are left out;
    with outliers (verl's seq_max) the whole sample of such a trained token.
    """

    def weight(samples: Samples, i: int, t: int) -> float:
        trained = [u for u, counts in enumerate(samples.mask[i]) if counts]
        judged = trained if rejected_by == "outlier" else [t]
        own = "token" if rejected_by == "outlier" else rejected_by
        kept = all(0.7 <= ratio(samples, i, u, own) <= 1.2 for u in judged)
        return min(ratio(samples, i, t, level), 1.4) if kept else 0.0

    rejection = {"level": rejected_by, "low": 0.7, "high": 1.2}
    check({"correction": {"type": "mis", "level": level, "high": 1.4, "rejection": rejection}}, weight)


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        ({"type": "mis", "rejection": {"low": 2.0, "high": 0.5}}, "low \\(2\\) must be below high \\(0.5\\)"),
        ({"type": "tis", "normalize": True}, 'only type = "mis" reads normalize'),
        ({"type": "icepop", "rejection": {"low": 0.5, "high": 2.0}}, 'only type = "mis" reads rejection'),
    ],
)
def test_only_mis_rejects_and_normalises(correction: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("algorithms", "grpo", {"correction": correction})


@pytest.mark.parametrize("delta", [0.05, 0.3, 2.0])
def test_off_policy_sequence_masking(delta: float) -> None:
    """DeepSeek-V3.2, section 3.1: M = 0 where A < 0 and the mean of log(π_old / π) exceeds δ, π_old being the
    probability that the inference engine returned, whatever the ratio's denominator is.
    """

    def weight(samples: Samples, i: int, t: int) -> float:
        gaps = [
            (engine - new) * counts
            for engine, new, counts in zip(samples.engine[i], samples.new[i], samples.mask[i], strict=True)
        ]
        return 0.0 if ADVANTAGES[i] < 0 and sum(gaps) / sum(samples.mask[i]) > delta else 1.0

    check({"opsm": delta}, weight)


def test_the_penalty_on_the_log_of_the_ratio() -> None:
    """Kimi K2.5 and prime-rl: + tau · (log π / π_old)², whatever the advantage, the clip and the mask are."""
    samples, (plain, plain_gradients) = Samples(), loss_of({"opsm": 0.05})
    losses, gradients = loss_of({"opsm": 0.05, "log_ratio_coef": 0.3})
    places = [(i, t) for i, length in enumerate(LENGTHS) for t in range(length)]
    changes = [samples.new[i][t] - samples.old[i][t] for i, t in places]
    assert losses == pytest.approx([loss + 0.3 * d * d for loss, d in zip(plain, changes, strict=True)])
    assert gradients == pytest.approx([g + 0.6 * d for g, d in zip(plain_gradients, changes, strict=True)])


@pytest.mark.parametrize("bound", [1.05, 3.0])
def test_dual_clip(bound: float) -> None:
    """Dual-clip PPO, equation 5: max(min(ρA, clip(ρ)A), cA) where A < 0."""

    def bounded(samples: Samples, i: int, t: int) -> bool:
        new, old = samples.new[i][t], samples.old[i][t]
        return ADVANTAGES[i] < 0 and -surrogate(new, old, ADVANTAGES[i]) < bound * ADVANTAGES[i]

    samples, places = Samples(), [(i, t) for i, length in enumerate(LENGTHS) for t in range(length)]
    losses, gradients = loss_of({"dual_clip": bound})
    for (i, t), loss, found in zip(places, losses, gradients, strict=True):
        token = samples.new[i][t], samples.old[i][t], ADVANTAGES[i]
        assert loss == pytest.approx(-bound * ADVANTAGES[i] if bounded(samples, i, t) else surrogate(*token))
        assert found == pytest.approx(0.0 if bounded(samples, i, t) else gradient(*token))


ESTIMATORS = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) - 1 + d,
    "low_var_kl": lambda d: min(max(math.exp(-d) - 1 + d, -10.0), 10.0),
}
GRADIENTS = {
    "k1": lambda d: 1.0,
    "k2": lambda d: d,
    "k3": lambda d: 1 - math.exp(-d),
    "low_var_kl": lambda d: 1 - math.exp(-d),
}


def test_k1_in_the_loss_is_refused_where_it_trains_nothing() -> None:
    """The mean gradient of log π over π's own samples is 0 (http://joschu.net/blog/kl-approx.html)."""
    with pytest.raises(PluginError, match="k1 in the loss trains nothing"):
        build("algorithms", "grpo", {"kl": {"in_loss": {"type": "k1", "coef": 0.1}}})
    build("algorithms", "grpo", {"kl": {"in_loss": {"type": "k1", "coef": 0.0}}})


def test_icepop_is_two_sided_by_default() -> None:
    """α = 0.5, β = 5 as published (https://arxiv.org/abs/2510.18855, https://arxiv.org/abs/2512.16144)."""
    assert Correction(type="icepop").bounds == (0.5, 5.0)
    assert Correction(type="icepop", high=2.0).bounds == (0.5, 2.0)
    assert Correction().bounds == (0.0, 2.0)


@pytest.mark.parametrize(
    ("kind", "unbiased"),
    [*((kind, True) for kind in ESTIMATORS), *((kind, False) for kind in GRADIENTS if kind != "k1")],
)
def test_kl_estimators(kind: str, unbiased: bool) -> None:
    """Schulman's k1, k2, k3 of d = log π - log π_ref, and gradients; times π / π_old where unbiased."""
    samples, inputs = Samples(), Samples().inputs()
    params = {"kl": {"in_loss": {"type": kind, "coef": 1.0, "unbiased": unbiased}}}
    outputs = build("algorithms", "grpo", params).loss(inputs)
    (outputs.loss - build("algorithms", "grpo", {}).loss(inputs).loss).sum().backward()
    values, gradients = [], []
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            new, old = samples.new[i][t], samples.old[i][t]
            away = new - samples.reference[i][t]
            factor = math.exp(new - old) if unbiased else 1.0
            values.append(ESTIMATORS[kind](away) * factor)
            gradients.append(GRADIENTS[kind](away) * factor + (values[-1] if unbiased else 0.0))
    assert outputs.metrics["kl_loss"].tolist() == pytest.approx(values)
    assert inputs.log_probs.grad is not None
    assert inputs.log_probs.grad.tolist() == pytest.approx(gradients)


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo"])
def test_weights_of_tokens_multiply_their_kl(name: str) -> None:
    """loss = policy loss + coef · weight · k3, in value and gradient; only the KL is weighted."""
    params = {"kl": {"in_loss": {"type": "k3", "coef": 0.3}}}
    weights = torch.tensor([0.0, 0.5, 2.0, 1.0] * 3)
    inputs = micro_batch(kl_weights=weights)
    plain = micro_batch()
    own = build("algorithms", name, params).loss(inputs).loss
    policy = build("algorithms", name, {}).loss(plain).loss
    distance = plain.reference_log_probs - plain.log_probs
    expected = policy + 0.3 * weights * (distance.exp() - 1 - distance)
    torch.testing.assert_close(own, expected)
    own.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(inputs.log_probs.grad, plain.log_probs.grad)


def test_weights_of_tokens_multiply_the_penalty_in_the_reward() -> None:
    one = group([1.0, 0.0], [3, 2])
    one.samples[0].greedy_reward = one.samples[1].greedy_reward = 0.0
    one.samples[0].kl_weights = np.array([0.0, 2.0, 1.0], np.float32)
    algorithm = build("algorithms", "remax", {"kl": {"in_reward": {"type": "k1", "coef": 0.1}}})
    weighted, other = algorithm.advantages([one])
    # each token's log-prob exceeds the reference's by 0.5
    assert weighted.tolist() == pytest.approx([1 - 0.15, 1 - 0.15, 1 - 0.05])
    assert other.tolist() == pytest.approx([-0.1, -0.05])
