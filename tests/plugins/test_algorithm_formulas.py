"""Every algorithm's whole step against its paper, written out sample by sample in float64.

A reference is a plain function of the rollout: rewards and log-probs in, each token's loss out. It shares
nothing with the plugins, and torch only gives it derivatives. Samples have several turns, and some are
truncated: a reference sees the tokens of the policy alone, as if nothing stood between its turns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build, names
from rlrun.plugins.testing import group
from rlrun.plugins.types import Group, LossInputs, Status, ValueInputs
from rlrun.runner.batches.reduction import Reduction, token_scales

REWARDS = [[1.0, 0.0, 0.25, 0.5], [0.0, 3.0, -1.0]]
MASKS = [["111", "1100110", "11", "01101"], ["1", "101110111", "1110"]]
"""Of each token of each sample: whether the policy made it."""
TRUNCATED = {(0, 1), (1, 2)}
LONGEST = 16


@dataclass
class Rollout:
    """Log-probs and values of one sample's tokens that the policy made, float64."""

    reward: float
    others: list[float]
    """All rewards of its group, its own included."""
    truncated: bool
    mask: torch.Tensor
    """`[R]`, of all of its tokens."""
    value_after: float
    new: torch.Tensor
    old: torch.Tensor
    reference: torch.Tensor
    teacher: torch.Tensor
    values: torch.Tensor

    @property
    def group_mean(self) -> float:
        return sum(self.others) / len(self.others)

    @property
    def group_std(self) -> float:
        squares = sum((other - self.group_mean) ** 2 for other in self.others)
        return math.sqrt(squares / (len(self.others) - 1))


def rollouts() -> tuple[list[Group], list[Rollout]]:
    """The same samples as plugins see them and as references do."""
    rng = np.random.default_rng(3)
    lengths = [[len(mask) for mask in masks] for masks in MASKS]
    groups = [group(rewards, own) for rewards, own in zip(REWARDS, lengths, strict=True)]
    found = []
    for i, (one, rewards) in enumerate(zip(groups, REWARDS, strict=True)):
        for j, (sample, bits) in enumerate(zip(one.samples, MASKS[i], strict=True)):
            mask = np.array([bit == "1" for bit in bits])
            old = -np.abs(rng.normal(1, 0.5, len(mask)))
            arrays = [old + rng.normal(0, scale, len(mask)) for scale in (0.4, 0.0, 0.3, 0.3)]
            new, old, reference, teacher, values = (
                np.float32(array).astype(np.float64) for array in (*arrays, rng.normal(0, 1, len(mask)))
            )
            sample.loss_mask, sample.log_probs = np.float32(mask), np.float32(old * mask)
            sample.policy_log_probs, sample.values = old, values
            sample.reference_log_probs, sample.teacher_log_probs = reference, teacher
            sample.value_after = 10 + float(rng.normal())
            sample.status = Status.TRUNCATED if (i, j) in TRUNCATED else Status.COMPLETED
            made = [torch.tensor(array[mask]) for array in (new, old, reference, teacher, values)]
            made[0].requires_grad_()
            facts = sample.reward, rewards, (i, j) in TRUNCATED, torch.tensor(mask), sample.value_after
            found.append(Rollout(*facts, *made))
    return groups, found


def spread(step: list[Rollout], made: list[torch.Tensor]) -> torch.Tensor:
    """Numbers of the policy's tokens among those of the others, of which nothing may be read."""
    everything = []
    for one, values in zip(step, made, strict=True):
        array = torch.full(one.mask.shape, -7.0, dtype=torch.float64)
        array[one.mask] = values.detach()
        everything.append(array)
    return torch.cat(everything)


def loss_inputs(step: list[Rollout], advantages: list[Any], **changes: torch.Tensor) -> LossInputs:
    """What the trainer gives a loss."""
    old = spread(step, [one.old for one in step])
    lengths = torch.tensor([len(one.mask) for one in step])
    fields = {
        "log_probs": spread(step, [one.new for one in step]).requires_grad_(),
        "entropy": torch.zeros_like(old),
        "old_log_probs": old,
        "rollout_log_probs": old,
        "reference_log_probs": spread(step, [one.reference for one in step]),
        "advantages": torch.from_numpy(np.concatenate(advantages)).double(),
        "mask": torch.cat([one.mask for one in step]).double(),
        "sample": torch.repeat_interleave(torch.arange(len(step)), lengths),
    }
    return LossInputs(**(fields | changes), num_samples=len(step))


def reduced(step: list[Rollout], losses: list[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """Token losses as one number: DeepSeekMath's equation 3, DAPO's 8, Dr. GRPO's with a constant length."""
    if reduction == "per_sample_mean":
        return torch.stack([own.mean() for own in losses]).mean()
    total = torch.cat(losses).sum()
    return total / (len(step) * LONGEST if reduction == "dr_grpo" else sum(len(own) for own in losses))


def constant(value: float, one: Rollout) -> torch.Tensor:
    return torch.full_like(one.old, value)


def clipped(one: Rollout, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """PPO, equation 7."""
    losses = []
    for ratio, advantage in zip((one.new - one.old).exp(), advantages, strict=True):
        inside = min(max(ratio, ratio.new_tensor(1 - low)), ratio.new_tensor(1 + high))
        losses.append(-torch.minimum(ratio * advantage, inside * advantage))
    return torch.stack(losses)


def whitened(advantages: list[torch.Tensor]) -> list[torch.Tensor]:
    everything = torch.cat(advantages)
    scale = torch.sqrt(everything.var(unbiased=True) + 1e-8)
    return [(one - everything.mean()) / scale for one in advantages]


def grpo(step: list[Rollout]) -> list[torch.Tensor]:
    """DeepSeekMath, section 4.1.1: outcome supervision."""
    scaled = [(one.reward - one.group_mean) / (one.group_std + 1e-6) for one in step]
    return [clipped(one, constant(a, one), 0.2, 0.2) for one, a in zip(step, scaled, strict=True)]


def dr_grpo(step: list[Rollout]) -> list[torch.Tensor]:
    """Understanding R1-Zero-like training, equation 3: neither the std nor the length divides."""
    return [clipped(one, constant(one.reward - one.group_mean, one), 0.2, 0.2) for one in step]


def dapo(step: list[Rollout]) -> list[torch.Tensor]:
    """DAPO, equations 8 to 10: clip-higher."""
    scaled = [(one.reward - one.group_mean) / (one.group_std + 1e-6) for one in step]
    return [clipped(one, constant(a, one), 0.2, 0.28) for one, a in zip(step, scaled, strict=True)]


def gspo(step: list[Rollout]) -> list[torch.Tensor]:
    """GSPO, equations 5 to 7: (pi(y) / pi_old(y)) ^ (1 / |y|)."""
    losses = []
    for one in step:
        advantage = (one.reward - one.group_mean) / (one.group_std + 1e-6)
        ratio = (one.new.sum().exp() / one.old.sum().exp()) ** (1 / len(one.old))
        inside = ratio.clamp(1 - 3e-4, 1 + 4e-4)
        loss = -torch.minimum(ratio * advantage, inside * advantage)
        losses.append(loss.expand(len(one.old)))
    return losses


def cispo(step: list[Rollout]) -> list[torch.Tensor]:
    """MiniMax-M1, equations 4 and 5, without a lower bound."""
    losses = []
    for one in step:
        advantage = (one.reward - one.group_mean) / (one.group_std + 1e-6)
        weight = torch.clamp((one.new - one.old).exp(), max=1.28).detach()
        losses.append(-weight * advantage * one.new)
    return losses


def rloo(step: list[Rollout]) -> list[torch.Tensor]:
    """Back to Basics, section 3.3: the baseline is the mean of the others' rewards."""
    losses = []
    for one in step:
        rest = list(one.others)
        rest.remove(one.reward)
        losses.append(clipped(one, constant(one.reward - sum(rest) / len(rest), one), 0.2, 0.2))
    return losses


def reinforce_plus_plus(step: list[Rollout]) -> list[torch.Tensor]:
    """REINFORCE++, equations 7 to 9: r - coef · the KL that is still to come, discounted, normalised."""
    advantages = []
    for one in step:
        rewards = -0.1 * (one.old - one.reference)
        rewards[-1] += one.reward
        advantages.append(discounted(rewards, 0.9))
    return [clipped(one, a, 0.2, 0.2) for one, a in zip(step, whitened(advantages), strict=True)]


def reinforce_plus_plus_baseline(step: list[Rollout]) -> list[torch.Tensor]:
    """REINFORCE++, section 3.2: minus the group's mean, the penalty on each token, normalised."""
    advantages = [one.reward - one.group_mean - 0.1 * (one.old - one.reference) for one in step]
    return [clipped(one, a, 0.2, 0.2) for one, a in zip(step, whitened(advantages), strict=True)]


def discounted(values: torch.Tensor, discount: float) -> torch.Tensor:
    length = len(values)
    return torch.stack(
        [sum(discount ** (u - t) * values[u] for u in range(t, length)) for t in range(length)]
    )


def gae(one: Rollout, gamma: float, lambd: float) -> torch.Tensor:
    """High-dimensional continuous control using GAE, equations 11 and 16, of InstructGPT's penalised rewards.

    A truncated sample has not come to its end: its last delta has the value of the state that it was left in.
    """
    rewards = -0.1 * (one.old - one.reference)
    rewards[-1] += one.reward
    after = torch.tensor([one.value_after if one.truncated else 0.0], dtype=torch.float64)
    values = torch.cat([one.values, after])
    return discounted(rewards + gamma * values[1:] - values[:-1], gamma * lambd)


def ppo(step: list[Rollout]) -> list[torch.Tensor]:
    return [clipped(one, gae(one, 0.99, 0.95), 0.2, 0.2) for one in step]


def on_policy_distillation(step: list[Rollout]) -> list[torch.Tensor]:
    """The policy gradient of the reverse KL to the teacher, importance-weighted and clipped."""
    return [clipped(one, one.teacher - one.old, 0.2, 0.2) for one in step]


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


IN_REWARD = {"kl": {"in_reward": {"type": "k1", "coef": 0.1}}}
CASES: dict[str, tuple[Callable[[list[Rollout]], list[torch.Tensor]], dict[str, Any]]] = {
    "grpo": (grpo, {}),
    "dr_grpo": (dr_grpo, {}),
    "dapo": (dapo, {}),
    "gspo": (gspo, {}),
    "cispo": (cispo, {}),
    "rloo": (rloo, {}),
    "reinforce_plus_plus": (reinforce_plus_plus, {"gamma": 0.9, **IN_REWARD}),
    "reinforce_plus_plus_baseline": (reinforce_plus_plus_baseline, IN_REWARD),
    "ppo": (ppo, {"gamma": 0.99, "lambd": 0.95, "bootstrap_truncated": True, **IN_REWARD}),
    "on_policy_distillation": (on_policy_distillation, {}),
    "sft": (sft, {}),
    "dpo": (dpo, {}),
}


def test_every_shipped_algorithm_has_a_reference() -> None:
    shipped = set(names("algorithms"))
    assert shipped >= CASES.keys()
    assert not {name for name in shipped if name not in CASES and not name.startswith("example")}


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
@pytest.mark.parametrize("name", CASES)
def test_a_step_s_loss_and_gradient_are_the_paper_s(name: str, reduction: Reduction) -> None:
    reference, params = CASES[name]
    groups, step = rollouts()
    if name == "dpo":
        step = step[:6]
    algorithm = build("algorithms", name, params)
    inputs = loss_inputs(step, algorithm.advantages(groups)[: len(step)])
    losses, expected = algorithm.loss(inputs).loss, reference(step)
    torch.testing.assert_close(losses[inputs.mask > 0], torch.cat(expected), rtol=1e-6, atol=1e-6)

    masks = [one.mask.numpy().astype(np.float32) for one in step]
    scales = token_scales(masks, [str(number) for number in range(len(step))], reduction, LONGEST)
    loss = (losses * inputs.mask * torch.from_numpy(scales)[inputs.sample]).sum()
    total = reduced(step, expected, reduction)
    torch.testing.assert_close(loss, total, rtol=1e-6, atol=1e-6)
    loss.backward()
    total.backward()
    slopes = torch.cat([one.new.grad for one in step if one.new.grad is not None])
    torch.testing.assert_close(inputs.log_probs.grad[inputs.mask > 0], slopes, rtol=1e-5, atol=1e-7)
    assert not inputs.log_probs.grad[inputs.mask == 0].any()


def test_the_critic_is_fitted_to_the_penalised_returns() -> None:
    groups, step = rollouts()
    algorithm = build("algorithms", "ppo", CASES["ppo"][1])
    mask = torch.cat([one.mask for one in step])
    returns = torch.from_numpy(np.concatenate(algorithm.returns(groups))).double()
    expected = torch.cat([gae(one, 0.99, 0.95) + one.values for one in step])
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


def test_every_term_stands_where_its_paper_puts_it() -> None:
    groups, step = rollouts()
    algorithm = build("algorithms", "dr_grpo", TERMS)
    generator = torch.Generator().manual_seed(1)
    engines = [
        one.old + 0.1 * torch.randn(len(one.old), generator=generator, dtype=torch.float64) for one in step
    ]
    entropies = [torch.rand(len(one.old), generator=generator, dtype=torch.float64) for one in step]
    inputs = loss_inputs(
        step,
        algorithm.advantages(groups),
        rollout_log_probs=spread(step, engines),
        entropy=spread(step, entropies),
    )
    losses = algorithm.loss(inputs).loss[inputs.mask > 0]
    parts = zip(step, engines, entropies, strict=True)
    expected = torch.cat([with_terms(one, one.reward - one.group_mean, *rest) for one, *rest in parts])
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=1e-6)
    losses.sum().backward()
    expected.sum().backward()
    slopes = torch.cat([one.new.grad for one in step if one.new.grad is not None])
    torch.testing.assert_close(inputs.log_probs.grad[inputs.mask > 0], slopes, rtol=1e-5, atol=1e-6)
