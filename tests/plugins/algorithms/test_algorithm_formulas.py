"""Every algorithm's whole step against its paper, written out sample by sample in float64 (rollouts.py)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.plugins.types import Group, ValueInputs
from rlrun.runner.batches.reduction import Reduction
from tests.plugins.algorithms.rollouts import (
    Advantages,
    Rollout,
    TokenLoss,
    check_step,
    clipped,
    constant,
    loss_inputs,
    of_step,
    rollouts,
    spread,
    whitened,
)
from tests.plugins.algorithms.shipped import SHIPPED


def group_scaled(step: list[Rollout]) -> list[torch.Tensor]:
    """DeepSeekMath, section 4.1.1: outcome supervision."""
    return [constant((one.reward - one.group_mean) / (one.group_std + 1e-6), one) for one in step]


def group_centred(step: list[Rollout]) -> list[torch.Tensor]:
    """Understanding R1-Zero-like training, equation 3: the std does not divide."""
    return [constant(one.reward - one.group_mean, one) for one in step]


def left_out(step: list[Rollout]) -> list[torch.Tensor]:
    """Back to Basics, section 3.3: the baseline is the mean of the others' rewards."""
    advantages = []
    for one in step:
        rest = list(one.others)
        rest.remove(one.reward)
        advantages.append(constant(one.reward - sum(rest) / len(rest), one))
    return advantages


def relative_to_the_mean(step: list[Rollout]) -> list[torch.Tensor]:
    """MaxRL, algorithm 1: (r - mean) / mean, and nothing from a group without success."""
    return [
        constant((one.reward - one.group_mean) / one.group_mean if one.group_mean > 0 else 0.0, one)
        for one in step
    ]


def weighted_by_length(step: list[Rollout]) -> list[torch.Tensor]:
    """OPO, equation 8: the baseline is the mean reward, weighted by the number of tokens."""
    advantages = []
    for one in step:
        own = [other for other in step if other.group == one.group]
        tokens = [len(other.old) for other in own]
        baseline = sum(n * other.reward for n, other in zip(tokens, own, strict=True)) / sum(tokens)
        advantages.append(constant(one.reward - baseline, one))
    return advantages


def marginal_of_the_best(step: list[Rollout]) -> list[torch.Tensor]:
    """Optimizing for inference time objectives, section 3: the objective less that of the other samples."""
    advantages = []
    for one in step:
        rest = list(one.others)
        rest.remove(one.reward)
        advantages.append(constant(max(one.others) - max(rest), one))
    return advantages


def decoupled(step: list[Rollout]) -> list[torch.Tensor]:
    """GDPO, equations 4 to 6: each reward in its group, the weighted sum, then all samples of the step."""
    sums = []
    for one in step:
        total = 0.0
        for name, weight in (("right", 1.0), ("short", 2.0)):
            values = torch.tensor([o.parts[name] for o in step if o.group == one.group], dtype=torch.float64)
            total += weight * float((one.parts[name] - values.mean()) / (values.std() + 1e-6))
        sums.append(total)
    every = torch.tensor(sums, dtype=torch.float64)
    scale = every.std() + 1e-6
    return [
        constant(float((value - every.mean()) / scale), one) for value, one in zip(every, step, strict=True)
    ]


def nothing(step: list[Rollout]) -> list[torch.Tensor]:
    return [constant(0.0, one) for one in step]


def penalty(one: Rollout, kind: str) -> torch.Tensor:
    """0.1 times Schulman's estimate of the divergence from the reference, of each token by itself."""
    estimates = []
    for policy, reference in zip(one.old.tolist(), one.reference.tolist(), strict=True):
        ratio = math.exp(reference - policy)
        k3 = ratio - 1 - math.log(ratio)
        k2 = math.log(ratio) ** 2 / 2
        estimates.append(
            {"none": 0.0, "k1": -math.log(ratio), "k2": k2, "k3": k3, "low_var_kl": min(k3, 10)}[kind]
        )
    return 0.1 * torch.tensor(estimates, dtype=torch.float64)


def returns_to_come(step: list[Rollout], kind: str) -> list[torch.Tensor]:
    """REINFORCE++, equation 7: r less the penalties that are still to come, discounted."""
    advantages = []
    for one in step:
        rewards = -penalty(one, kind)
        rewards[-1] += one.reward
        advantages.append(discounted(rewards, 0.9))
    return advantages


def penalised_and_centred(step: list[Rollout], kind: str) -> list[torch.Tensor]:
    """REINFORCE++, section 3.2: minus the group's mean, the penalty on each token."""
    return [one.reward - one.group_mean - penalty(one, kind) for one in step]


def beyond_greedy(step: list[Rollout], kind: str) -> list[torch.Tensor]:
    """ReMax, algorithm 1: r less that of the greedy response, and the penalties that are still to come."""
    return [one.reward - one.greedy_reward - discounted(penalty(one, kind), 1.0) for one in step]


def beyond_the_average(step: list[Rollout]) -> list[torch.Tensor]:
    """SPIRAL, algorithm 1, in the order of the authors' code: r less the average before it, from 0."""
    advantages, average = [], 0.0
    for one in step:
        advantages.append(constant(one.reward - average, one))
        average = 0.95 * average + 0.05 * one.reward
    return advantages


def discounted(values: torch.Tensor, discount: float) -> torch.Tensor:
    length = len(values)
    return torch.stack(
        [sum(discount ** (u - t) * values[u] for u in range(t, length)) for t in range(length)]
    )


def gae(one: Rollout, kind: str = "k1") -> torch.Tensor:
    """High-dimensional continuous control using GAE, equations 11 and 16, of InstructGPT's penalised rewards.

    A truncated sample has not come to its end: its last delta has the value of the state that it was left in.
    """
    gamma, lambd = 0.99, 0.95
    rewards = -penalty(one, kind)
    rewards[-1] += one.reward
    after = torch.tensor([one.value_after if one.truncated else 0.0], dtype=torch.float64)
    values = torch.cat([one.values, after])
    return discounted(rewards + gamma * values[1:] - values[:-1], gamma * lambd)


def ppo_advantages(step: list[Rollout], kind: str) -> list[torch.Tensor]:
    return [gae(one, kind) for one in step]


def ppo_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    return clipped(one, advantages, 0.2, 0.2)


def dapo_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """DAPO, equations 8 to 10: clip-higher."""
    return clipped(one, advantages, 0.2, 0.28)


def gspo_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """GSPO, equations 5 to 7: (pi(y) / pi_old(y)) ^ (1 / |y|)."""
    ratio = (one.new.sum().exp() / one.old.sum().exp()) ** (1 / len(one.old))
    inside = ratio.clamp(1 - 3e-4, 1 + 4e-4)
    return torch.stack([-torch.minimum(ratio * each, inside * each) for each in advantages])


def cispo_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """MiniMax-M1, equations 4 and 5, without a lower bound."""
    weight = torch.clamp((one.new - one.old).exp(), max=1.28).detach()
    return -weight * advantages * one.new


def dppo_mask(one: Rollout, advantages: torch.Tensor, distance: Any, threshold: float) -> torch.Tensor:
    """DPPO, equation 12: -M r A, where M is 0 on a token beyond the threshold on its advantage's side."""
    losses = []
    for new, old, advantage in zip(one.new, one.old, advantages, strict=True):
        p, q = float(new.detach().exp()), float(old.exp())
        away = p > q if advantage > 0 else p < q
        masked = away and distance(p, q) > threshold
        losses.append(new * 0 if masked else -(new - old).exp() * advantage)
    return torch.stack(losses)


def dppo_tv_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """The total variation between two Bernoulli distributions."""
    return dppo_mask(one, advantages, lambda p, q: (abs(p - q) + abs((1 - p) - (1 - q))) / 2, 0.15)


def dppo_kl_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """The divergence from the engine's Bernoulli distribution to the policy's."""

    def kl(p: float, q: float) -> float:
        return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))

    return dppo_mask(one, advantages, kl, 0.05)


def sapo_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """SAPO, equations 5 and 6: f(r) = 4 / tau · sigmoid(tau (r - 1))."""
    losses = []
    for ratio, advantage in zip((one.new - one.old).exp(), advantages, strict=True):
        tau = 1.0 if advantage > 0 else 1.05
        losses.append(-4 / tau / (1 + torch.exp(-tau * (ratio - 1))) * advantage)
    return torch.stack(losses)


def gmpo_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """GMPO, equation 4: the |o|-th root of the product of pessimistically clipped ratios, times A."""
    product = torch.ones((), dtype=torch.float64)
    for ratio, advantage in zip((one.new - one.old).exp(), advantages, strict=True):
        inside = ratio.clamp(math.exp(-0.4), math.exp(0.4))
        sign = 1.0 if advantage > 0 else -1.0
        product = product * torch.minimum(sign * ratio, sign * inside).abs()
    return -(product ** (1 / len(one.old))) * advantages


def gspo_token_loss(one: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """GSPO, equation 13: the sample's ratio in value, the token's in gradient."""
    ratio = float((one.new.detach().sum().exp() / one.old.sum().exp()) ** (1 / len(one.old)))
    inside = min(max(ratio, 1 - 3e-4), 1 + 4e-4)
    losses = []
    for new, advantage in zip(one.new, advantages, strict=True):
        moving = ratio * (new - new.detach()).exp()
        clipped_now = inside * advantage < ratio * advantage
        losses.append(-inside * advantage + new * 0 if clipped_now else -moving * advantage)
    return torch.stack(losses)


def covariances(step: list[Rollout], advantages: list[torch.Tensor]) -> list[list[float]]:
    """The entropy mechanism, equation 9: each token's (log pi - mean) (A - mean) over all tokens."""
    log_probs = [float(value) for one in step for value in one.old]
    values = [float(value) for own in advantages for value in own]
    mean_log, mean_value = sum(log_probs) / len(log_probs), sum(values) / len(values)
    return [
        [(float(lp) - mean_log) * (float(a) - mean_value) for lp, a in zip(one.old, own, strict=True)]
        for one, own in zip(step, advantages, strict=True)
    ]


def kl_cov(step: list[Rollout], advantages: list[torch.Tensor]) -> list[torch.Tensor]:
    """Equations 12 and 13 with k = 0.2: a penalty of |log pi - log pi_old| on the largest covariances."""
    table = covariances(step, advantages)
    ranked = sorted((value for row in table for value in row), reverse=True)
    smallest = ranked[int(0.2 * len(ranked)) - 1]
    losses = []
    for one, own, row in zip(step, advantages, table, strict=True):
        log_ratio = one.new - one.old
        penalised = torch.tensor([value >= smallest for value in row])
        losses.append(-log_ratio.exp() * own + log_ratio.abs() * penalised)
    return losses


def clip_cov(step: list[Rollout], advantages: list[torch.Tensor]) -> list[torch.Tensor]:
    """Equations 10 and 11 where all tokens between the bounds are chosen: the draw decides nothing."""
    losses = []
    for one, own, row in zip(step, advantages, covariances(step, advantages), strict=True):
        chosen = torch.tensor([0.05 < value < 0.5 for value in row])
        losses.append(torch.where(chosen, one.new * 0, ppo_loss(one, own)))
    return losses


def m2po(step: list[Rollout], advantages: list[torch.Tensor]) -> list[torch.Tensor]:
    """M2PO as AReaL has it: drop the largest (log r)² until the mean of the others is below 0.02."""
    squares = sorted(
        float((old - engine) ** 2) for one in step for old, engine in zip(one.old, one.engine, strict=True)
    )
    while sum(squares) / len(squares) >= 0.02:
        squares.pop()
    losses = []
    for one, own in zip(step, advantages, strict=True):
        kept = (one.old - one.engine) ** 2 <= squares[-1]
        losses.append(torch.where(kept, -(one.new - one.engine).exp() * own, one.new * 0))
    return losses


def pairwise(step: list[Rollout], loss: Callable[[Rollout, Rollout], torch.Tensor]) -> list[torch.Tensor]:
    """Neighbours are a pair, whose loss is on each of their tokens."""
    losses = []
    for win, lose in zip(step[::2], step[1::2], strict=True):
        value = loss(win, lose)
        losses += [value.expand(len(win.old)), value.expand(len(lose.old))]
    return losses


def ipo(step: list[Rollout]) -> list[torch.Tensor]:
    """A general paradigm, equation 17, tau = 0.1, of mean log-probs."""

    def loss(win: Rollout, lose: Rollout) -> torch.Tensor:
        h = (win.new - win.reference).mean() - (lose.new - lose.reference).mean()
        return (h - 0.5 / 0.1) ** 2

    return pairwise(step, loss)


def simpo(step: list[Rollout]) -> list[torch.Tensor]:
    """SimPO, equation 6."""

    def loss(win: Rollout, lose: Rollout) -> torch.Tensor:
        reward = 2.0 / len(win.new) * win.new.sum() - 2.0 / len(lose.new) * lose.new.sum()
        return -torch.log(1 / (1 + torch.exp(-(reward - 0.5))))

    return pairwise(step, loss)


def orpo(step: list[Rollout]) -> list[torch.Tensor]:
    """ORPO, equations 3 to 7."""

    def loss(win: Rollout, lose: Rollout) -> torch.Tensor:
        p, q = win.new.mean().exp(), lose.new.mean().exp()
        ratio = (p / (1 - p)) / (q / (1 - q))
        return -torch.log(p) - 0.1 * torch.log(torch.sigmoid(torch.log(ratio)))

    return pairwise(step, loss)


StepLoss = Callable[[list[Rollout], list[torch.Tensor]], list[torch.Tensor]]
MARKING: dict[str, tuple[StepLoss, dict[str, Any]]] = {
    "kl_cov": (kl_cov, {"fraction": 0.2}),
    "clip_cov": (clip_cov, {"fraction": 1.0, "low": 0.05, "high": 0.5}),
    "m2po": (m2po, {"threshold": 0.02}),
}
"""Losses in which a token's loss depends on the other samples of the step."""


def sft(step: list[Rollout]) -> list[torch.Tensor]:
    return [-one.new for one in step]


def dpo(step: list[Rollout]) -> list[torch.Tensor]:
    """DPO, equation 7; neighbours are a pair."""
    losses = []
    for win, lose in zip(step[::2], step[1::2], strict=True):
        logits = 0.1 * ((win.new - win.reference).sum() - (lose.new - lose.reference).sum())
        loss = -torch.log(1 / (1 + torch.exp(-logits)))
        losses += [loss.expand(len(win.old)), loss.expand(len(lose.old))]
    return losses


WHITENED = {"reinforce_plus_plus", "reinforce_plus_plus_baseline"}
"""REINFORCE++, equation 9: advantages are normalised over the whole step."""
GRADIENTS: dict[str, tuple[Advantages, TokenLoss, dict[str, Any]]] = {
    "grpo": (group_scaled, ppo_loss, {}),
    "dr_grpo": (group_centred, ppo_loss, {}),
    "dapo": (group_scaled, dapo_loss, {}),
    "gspo": (group_scaled, gspo_loss, {}),
    "cispo": (group_scaled, cispo_loss, {}),
    "rloo": (left_out, ppo_loss, {}),
    "max_rl": (relative_to_the_mean, ppo_loss, {}),
    "opo": (weighted_by_length, ppo_loss, {}),
    "pass_at_k": (marginal_of_the_best, ppo_loss, {}),
    "gdpo": (decoupled, ppo_loss, {}),
    "dppo": (group_scaled, dppo_tv_loss, {}),
    "sapo": (group_scaled, sapo_loss, {}),
    "gmpo": (group_scaled, gmpo_loss, {}),
    "gspo_token": (group_scaled, gspo_token_loss, {}),
    "on_policy_distillation": (nothing, ppo_loss, {}),
    "reinforce_plus_plus": (returns_to_come, ppo_loss, {"gamma": 0.9}),
    "reinforce_plus_plus_baseline": (penalised_and_centred, ppo_loss, {}),
    "remax": (beyond_greedy, ppo_loss, {}),
    "rae": (beyond_the_average, ppo_loss, {}),
    "ppo": (ppo_advantages, ppo_loss, {"gamma": 0.99, "lambd": 0.95, "bootstrap_truncated": True}),
}
PENALISED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "ppo")
LIKELIHOODS = {"sft": sft, "dpo": dpo, "online_dpo": dpo, "ipo": ipo, "simpo": simpo, "orpo": orpo}
PENALTIES = ("none", "k1", "k2", "k3", "low_var_kl")


@dataclass
class Options:
    """The parameters that change any algorithm's advantages."""

    penalty: str = "none"
    distillation: float = 0.0
    normalize: bool = False
    top_entropy: float | None = None

    def params(self, name: str) -> dict[str, Any]:
        """As the plugin takes them."""
        found = dict(GRADIENTS[name][2])
        if self.penalty != "none":
            found["kl"] = {"in_reward": {"type": self.penalty, "coef": 0.1}}
        if self.distillation:
            found["distillation"] = {"coef": self.distillation}
        if self.normalize:
            found["normalize_advantages"] = True
        if self.top_entropy is not None:
            found["top_entropy"] = self.top_entropy
        return found


def losses_of(name: str, step: list[Rollout], options: Options) -> list[torch.Tensor]:
    """Each token's loss: advantages, less the reverse KL to the teacher, normalised."""
    estimate, loss, _ = GRADIENTS[name]
    advantages = estimate(step, options.penalty) if name in PENALISED else estimate(step)
    coef = options.distillation or (1.0 if name == "on_policy_distillation" else 0.0)
    advantages = [a - coef * (one.old - one.teacher) for a, one in zip(advantages, step, strict=True)]
    if options.normalize or name in WHITENED:
        advantages = whitened(advantages)
    losses = [loss(one, a) for one, a in zip(step, advantages, strict=True)]
    if options.top_entropy is None:
        return losses
    kept = of_high_entropy(step, options.top_entropy)
    return [torch.where(own, values, values * 0) for own, values in zip(kept, losses, strict=True)]


def of_high_entropy(step: list[Rollout], share: float) -> list[torch.Tensor]:
    """Beyond the 80/20 rule, equation 5: tokens whose entropy reaches the threshold that this share of the
    batch's tokens does.
    """
    ranked = sorted((float(value) for one in step for value in one.entropies), reverse=True)
    threshold = ranked[math.floor(share * (len(ranked) - 1))]
    return [one.entropies >= threshold for one in step]


def test_every_shipped_algorithm_has_a_reference() -> None:
    apart = {"kto", "gkd", "bradley_terry"}  # the losses of the last two are tested by themselves
    assert GRADIENTS.keys() | LIKELIHOODS.keys() | MARKING.keys() | apart == set(SHIPPED)


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_step_s_loss_and_gradient_are_the_paper_s(name: str, reduction: Reduction) -> None:
    options = Options(penalty="k1" if name in PENALISED else "none")
    check_step(name, options.params(name), reduction, lambda step: losses_of(name, step, options))


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
@pytest.mark.parametrize("name", MARKING)
def test_a_loss_of_marked_tokens_and_its_gradient_are_the_paper_s(name: str, reduction: Reduction) -> None:
    loss, params = MARKING[name]
    check_step(name, params, reduction, lambda step: loss(step, group_scaled(step)))
    groups, step = rollouts()
    algorithm = build("algorithms", name, params)
    marks = np.concatenate(of_step(groups, algorithm.marks(groups, algorithm.advantages(groups))))
    trained = np.concatenate([one.mask for one in step])
    assert 0 < marks[trained].sum() < trained.sum(), "some tokens are marked"
    assert not marks[~trained].any()


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.8, 1.0])
def test_only_tokens_of_high_entropy_are_trained(share: float, reduction: Reduction) -> None:
    options = Options(top_entropy=share)
    check_step("grpo", options.params("grpo"), reduction, lambda step: losses_of("grpo", step, options))
    kept = torch.cat(of_high_entropy(rollouts()[1], share))
    assert abs(kept.double().mean() - share) <= 1 / len(kept)


VARIANTS: dict[str, tuple[str, dict[str, Any], TokenLoss]] = {
    "dppo, kl": ("dppo", {"divergence": "kl"}, dppo_kl_loss),
}
"""Parameters of an algorithm that change its formula."""


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_s_loss_and_gradient_are_the_paper_s(variant: str, reduction: Reduction) -> None:
    name, params, loss = VARIANTS[variant]

    def reference(step: list[Rollout]) -> list[torch.Tensor]:
        return [loss(one, a) for one, a in zip(step, GRADIENTS[name][0](step), strict=True)]

    check_step(name, params, reduction, reference)


CLIPPING = [*(name for name in GRADIENTS if name != "sapo")]


@pytest.mark.parametrize("name", CLIPPING)
def test_the_rollouts_reach_the_bounds_of_every_algorithm_that_has_some(name: str) -> None:
    groups, step = rollouts()
    algorithm = build("algorithms", name, GRADIENTS[name][2])
    inputs = loss_inputs(step, of_step(groups, algorithm.advantages(groups)))
    bounded = algorithm.loss(inputs).metrics["clip_frac"][inputs.mask > 0]
    assert bounded.any() and not bounded.all()


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_likelihood_s_loss_and_gradient_are_the_paper_s(name: str, reduction: Reduction) -> None:
    check_step(name, {}, reduction, LIKELIHOODS[name])


def labelled() -> tuple[list[Group], list[Rollout], list[bool], float]:
    """Rows with a response and a label, each beside a response that was not given to its prompt; and the mean
    gain of the latter.
    """
    groups, step = rollouts()
    samples = of_step(groups, [sample for one in groups for sample in one.samples])
    labels, rows, gains = [True, False, True], [], []
    for row, label in enumerate(labels):
        own, other = samples[2 * row + 1], samples[2 * row]
        other.loss_mask = np.zeros_like(other.loss_mask)
        prompt = replace(own.prompt, row=replace(own.prompt.row, label=label))
        rows.append(Group(prompt, [own, other]))
        gains.append(float((other.policy_log_probs - other.reference_log_probs).sum()))
    return rows, [step[number] for number in (1, 3, 5)], labels, sum(gains) / len(gains)


@pytest.mark.parametrize("towards", [-1.0, 1.0], ids=["below the reference", "above it"])
def test_kto_s_loss_and_gradient_are_the_paper_s(towards: float) -> None:
    """KTO: lambda (1 - sigmoid(±beta (r - z0))), where z0 = max(0, mean gain of mismatched pairs)."""
    groups, step, labels, gain = labelled()
    shift = 0.0 if gain * towards > 0 else -2 * gain / len(groups[0].samples[1].tokens)
    groups[0].samples[1].policy_log_probs = groups[0].samples[1].policy_log_probs + shift * 3
    divergence = max(gain + shift * len(groups[0].samples[1].tokens), 0.0)
    assert (divergence > 0) == (towards > 0)
    algorithm = build("algorithms", "kto", {"beta": 0.3, "good_weight": 1.5, "bad_weight": 0.5})
    advantages = algorithm.advantages(groups)
    marks = algorithm.marks(groups, advantages)
    inputs = loss_inputs(step, advantages[::2], marks=torch.from_numpy(np.concatenate(marks[::2])).double())
    loss = algorithm.loss(inputs).loss
    losses = []
    for one, label in zip(step, labels, strict=True):
        above = 0.3 * ((one.new - one.reference).sum() - divergence)
        value = 1.5 / (1 + torch.exp(-above)) if label else 0.5 / (1 + torch.exp(above))
        losses.append(((1.5 if label else 0.5) - value).expand(len(one.new)))
    torch.testing.assert_close(loss[inputs.mask > 0], torch.cat(losses), rtol=1e-6, atol=1e-6)
    means = inputs.sample_sum(loss * inputs.mask) / inputs.sample_sum(inputs.mask)
    means.mean().backward()
    torch.stack([own.mean() for own in losses]).mean().backward()
    gradients = torch.cat([one.new.grad for one in step if one.new.grad is not None])
    torch.testing.assert_close(inputs.log_probs.grad[inputs.mask > 0], gradients, rtol=1e-5, atol=1e-7)


def test_kto_has_no_preference_between_pairs_at_the_reference() -> None:
    """Where policy and reference are the same, each loss is half of its weight."""
    groups, step, *_ = labelled()
    for one in groups:
        one.samples[1].policy_log_probs = one.samples[1].reference_log_probs
    algorithm = build("algorithms", "kto", {"bad_weight": 3.0})
    advantages = algorithm.advantages(groups)
    marks = np.concatenate(algorithm.marks(groups, advantages)[::2])
    assert not marks.any()
    inputs = loss_inputs(step, advantages[::2], marks=torch.from_numpy(marks).double())
    inputs = replace(inputs, reference_log_probs=inputs.log_probs.detach())
    losses = algorithm.loss(inputs).loss[inputs.mask > 0]
    expected = [half for half, one in zip((0.5, 1.5, 0.5), step, strict=True) for _ in one.new]
    assert losses.tolist() == expected


@pytest.mark.parametrize(
    "options",
    [
        Options(distillation=0.5),
        Options(normalize=True),
        Options("none", 0.5, True),
        Options(normalize=True, top_entropy=0.3),
    ],
)
@pytest.mark.parametrize("name", GRADIENTS)
def test_what_shapes_advantages_does_so_for_every_algorithm(name: str, options: Options) -> None:
    if name == "gmpo" and options.top_entropy is not None:
        pytest.skip("a sample has one ratio, to which all of its tokens belong")
    check_step(name, options.params(name), "per_token", lambda step: losses_of(name, step, options))


@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("name", PENALISED)
def test_penalties_of_every_estimator_are_in_the_rewards(name: str, kind: str) -> None:
    options = Options(penalty=kind)
    check_step(name, options.params(name), "per_token", lambda step: losses_of(name, step, options))


def test_the_critic_is_fitted_to_the_penalised_returns() -> None:
    groups, step = rollouts()
    algorithm = build("algorithms", "ppo", Options("k1").params("ppo"))
    mask = torch.cat([one.mask for one in step])
    returns = torch.from_numpy(np.concatenate(of_step(groups, algorithm.returns(groups)))).double()
    expected = torch.cat([gae(one) + one.values for one in step])
    torch.testing.assert_close(returns[mask], expected, rtol=1e-6, atol=1e-6)
    old = spread(step, [one.values for one in step])
    values = (old + 0.3).requires_grad_()
    loss = algorithm.value_loss(ValueInputs(values, old, returns, mask.double())).loss
    near = torch.stack([min(max(v, o - 0.2), o + 0.2) for v, o in zip(values, old, strict=True)])
    torch.testing.assert_close(loss, torch.maximum((values - returns) ** 2, (near - returns) ** 2))


TERMS = {
    "dual_clip": 1.1,
    "entropy_coef": 0.01,
    "kl": {"in_loss": {"type": "k3", "coef": 0.2, "unbiased": True}},
    "correction": {"type": "mis", "level": "geometric", "mode": "clip", "low": 0.95, "high": 1.05},
}


def with_terms(one: Rollout, advantage: float, engine: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    """Dual-clip PPO (equation 5), times the clipped sequence ratio, plus Schulman's k3 times the ratio, minus
    the entropy.
    """
    losses = []
    weight = ((one.old - engine).sum() / len(one.old)).exp().clamp(0.95, 1.05)
    for t, (new, old) in enumerate(zip(one.new, one.old, strict=True)):
        ratio = (new - old).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        if advantage < 0:
            surrogate = torch.maximum(surrogate, torch.tensor(1.1 * advantage).double())
        away = one.reference[t] - new
        k3 = away.exp() - 1 - away
        losses.append(-surrogate * weight + 0.2 * k3 * ratio - 0.01 * entropy[t])
    return torch.stack(losses)


def test_every_term_is_placed_as_in_its_paper() -> None:
    groups, step = rollouts()
    algorithm = build("algorithms", "dr_grpo", TERMS)
    generator = torch.Generator().manual_seed(1)
    engines = [
        one.old + 0.1 * torch.randn(len(one.old), generator=generator, dtype=torch.float64) for one in step
    ]
    entropies = [torch.rand(len(one.old), generator=generator, dtype=torch.float64) for one in step]
    inputs = loss_inputs(
        step,
        of_step(groups, algorithm.advantages(groups)),
        rollout_log_probs=spread(step, engines),
        entropy=spread(step, entropies),
    )
    losses = algorithm.loss(inputs).loss[inputs.mask > 0]
    parts = zip(step, engines, entropies, strict=True)
    expected = torch.cat([with_terms(one, one.reward - one.group_mean, *rest) for one, *rest in parts])
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=1e-6)
    losses.sum().backward()
    expected.sum().backward()
    gradients = torch.cat([one.new.grad for one in step if one.new.grad is not None])
    torch.testing.assert_close(inputs.log_probs.grad[inputs.mask > 0], gradients, rtol=1e-5, atol=1e-6)
