"""Every algorithm against its paper, written out sample by sample in float64.

A reference is a plain function of the rollout: rewards and log-probs in, each token's loss out. It shares
nothing with the plugins, and torch only gives it derivatives.
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
from rlrun.plugins.types import Group, LossInputs, ValueInputs

REWARDS = [[1.0, 0.0, 0.25, 0.5], [0.0, 3.0, -1.0]]
LENGTHS = [[3, 5, 2, 4], [1, 6, 3]]


@dataclass
class Rollout:
    """Log-probs and values of one sample, float64."""

    reward: float
    others: list[float]
    """All rewards of its group, its own included."""
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
    groups = [group(rewards, lengths) for rewards, lengths in zip(REWARDS, LENGTHS, strict=True)]
    found = []
    for one, rewards in zip(groups, REWARDS, strict=True):
        for sample in one.samples:
            length = len(sample.tokens)
            old = -np.abs(rng.normal(1, 0.5, length))
            arrays = [old + rng.normal(0, scale, length) for scale in (0.4, 0.0, 0.3, 0.3)]
            new, old, reference, teacher = (torch.tensor(np.float32(array)).double() for array in arrays)
            values = torch.tensor(np.float32(rng.normal(0, 1, length))).double()
            sample.policy_log_probs, sample.values = old.numpy(), values.numpy()
            sample.reference_log_probs, sample.teacher_log_probs = reference.numpy(), teacher.numpy()
            found.append(
                Rollout(sample.reward, rewards, new.requires_grad_(), old, reference, teacher, values)
            )
    return groups, found


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
    """REINFORCE++, equations 7 to 9: A_t = r - coef · the KL that is still to come, normalised."""
    advantages = []
    for one in step:
        kl = one.old - one.reference
        advantages.append(torch.stack([one.reward - 0.1 * kl[t:].sum() for t in range(len(kl))]))
    return [clipped(one, a, 0.2, 0.2) for one, a in zip(step, whitened(advantages), strict=True)]


def reinforce_plus_plus_baseline(step: list[Rollout]) -> list[torch.Tensor]:
    """REINFORCE++, section 3.2: minus the group's mean, the penalty on each token, normalised."""
    advantages = [one.reward - one.group_mean - 0.1 * (one.old - one.reference) for one in step]
    return [clipped(one, a, 0.2, 0.2) for one, a in zip(step, whitened(advantages), strict=True)]


def gae(one: Rollout, gamma: float, lambd: float) -> torch.Tensor:
    """High-dimensional continuous control using GAE, equation 16, of InstructGPT's penalised rewards."""
    length = len(one.old)
    rewards = -0.1 * (one.old - one.reference)
    rewards[-1] += one.reward
    values = torch.cat([one.values, torch.zeros(1, dtype=torch.float64)])
    deltas = rewards + gamma * values[1:] - values[:-1]
    return torch.stack(
        [sum((gamma * lambd) ** (u - t) * deltas[u] for u in range(t, length)) for t in range(length)]
    )


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
    "reinforce_plus_plus": (reinforce_plus_plus, IN_REWARD),
    "reinforce_plus_plus_baseline": (reinforce_plus_plus_baseline, IN_REWARD),
    "ppo": (ppo, {"gamma": 0.99, "lambd": 0.95, **IN_REWARD}),
    "on_policy_distillation": (on_policy_distillation, {}),
    "sft": (sft, {}),
    "dpo": (dpo, {}),
}


def test_every_shipped_algorithm_has_a_reference() -> None:
    shipped = set(names("algorithms"))
    assert shipped >= CASES.keys()
    assert not {name for name in shipped if name not in CASES and not name.startswith("example")}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_the_paper_s(name: str) -> None:
    reference, params = CASES[name]
    groups, step = rollouts()
    if name == "dpo":
        step = step[:6]
    algorithm = build("algorithms", name, params)
    advantages = algorithm.advantages(groups)[: len(step)]
    new = torch.cat([one.new.detach() for one in step]).requires_grad_()
    outputs = algorithm.loss(
        LossInputs(
            log_probs=new,
            entropy=torch.zeros_like(new),
            old_log_probs=torch.cat([one.old for one in step]),
            rollout_log_probs=torch.cat([one.old for one in step]),
            reference_log_probs=torch.cat([one.reference for one in step]),
            advantages=torch.from_numpy(np.concatenate(advantages)).double(),
            mask=torch.ones(len(new)).double(),
            sample=torch.repeat_interleave(
                torch.arange(len(step)), torch.tensor([len(one.old) for one in step])
            ),
            num_samples=len(step),
        )
    )
    expected = torch.cat(reference(step))
    torch.testing.assert_close(outputs.loss, expected, rtol=1e-6, atol=1e-6)
    outputs.loss.sum().backward()
    expected.sum().backward()
    slopes = torch.cat([one.new.grad for one in step if one.new.grad is not None])
    torch.testing.assert_close(new.grad, slopes, rtol=1e-5, atol=1e-6)


def test_the_critic_is_fitted_to_the_penalised_returns() -> None:
    groups, step = rollouts()
    algorithm = build("algorithms", "ppo", CASES["ppo"][1])
    returns = torch.from_numpy(np.concatenate(algorithm.returns(groups))).double()
    expected = torch.cat([gae(one, 0.99, 0.95) + one.values for one in step])
    torch.testing.assert_close(returns, expected, rtol=1e-6, atol=1e-6)
    values = (torch.cat([one.values for one in step]) + 0.3).requires_grad_()
    old = values.detach() - 0.3
    loss = algorithm.value_loss(ValueInputs(values, old, returns, torch.ones(len(old)))).loss
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
    advantages = np.concatenate(algorithm.advantages(groups))
    lengths = torch.tensor([len(one.old) for one in step])
    generator = torch.Generator().manual_seed(1)
    old = torch.cat([one.old for one in step])
    engine = old + 0.1 * torch.randn(len(old), generator=generator, dtype=torch.float64)
    entropy = torch.rand(len(old), generator=generator, dtype=torch.float64)
    new = torch.cat([one.new.detach() for one in step]).requires_grad_()
    outputs = algorithm.loss(
        LossInputs(
            log_probs=new,
            entropy=entropy,
            old_log_probs=old,
            rollout_log_probs=engine,
            reference_log_probs=torch.cat([one.reference for one in step]),
            advantages=torch.from_numpy(advantages).double(),
            mask=torch.ones(len(old)).double(),
            sample=torch.repeat_interleave(torch.arange(len(step)), lengths),
            num_samples=len(step),
        )
    )
    parts = zip(step, engine.split(lengths.tolist()), entropy.split(lengths.tolist()), strict=True)
    expected = torch.cat([with_terms(one, one.reward - one.group_mean, *rest) for one, *rest in parts])
    torch.testing.assert_close(outputs.loss, expected, rtol=1e-6, atol=1e-6)
    outputs.loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(new.grad, torch.cat([one.new.grad for one in step]), rtol=1e-5, atol=1e-6)
