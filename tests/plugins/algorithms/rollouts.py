"""Rollouts as plugins see them and as a paper's formulas do, and the comparison of the two.

A reference is a plain function of the rollout: rewards and log-probs in, each token's loss out. It shares
nothing with the plugins, and torch only gives it derivatives. Samples have several turns, and some are
truncated: a reference sees the tokens of the policy alone, as if nothing stood between its turns. One sample
failed: a reference does not see it at all. Engines have other log-probs than the old policy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from rlrun.plugins.registry import build
from rlrun.plugins.testing import group
from rlrun.plugins.testing import sample as make_sample
from rlrun.plugins.types import Group, LossInputs, Status, TurnReward
from rlrun.runner.batches.reduction import Reduction, token_scales

Advantages = Callable[..., list[torch.Tensor]]
TokenLoss = Callable[["Rollout", torch.Tensor], torch.Tensor]
REWARDS = [[1.0, 0.0, 0.25, 0.5], [0.0, 3.0, -1.0]]
MASKS = [["111", "1100110", "11", "01101"], ["1", "101110111", "1110"]]
"""Of each token of each sample: whether the policy made it."""
TRUNCATED = {(0, 1), (1, 2)}
PARTS = [0.5, -0.25, 1.0, 0.0]
"""How much of a sample's reward is from a second one, by its place in the group."""
GREEDY_REWARDS = [0.75, -0.5]
"""Rewards of the greedy responses to both prompts."""
REFERENCE_REWARDS = [[1.0, 0.0, 0.5], [2.0, -1.0]]
"""Rewards of samples of the reference policy, which the rows of both groups have."""
FAILED = 2
"""The place of the failed sample."""
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
    engine: torch.Tensor
    parts: dict[str, float]
    """Its rewards by name."""
    group: int
    reference_rewards: list[float]
    entropies: torch.Tensor
    squared_probs: torch.Tensor
    greedy_reward: float
    turns: list[tuple[int, float]] = field(default_factory=list)
    """Of each turn the number of tokens that the policy made, and its reward; [] without such rewards."""

    @property
    def group_mean(self) -> float:
        return sum(self.others) / len(self.others)

    @property
    def group_std(self) -> float:
        squares = sum((other - self.group_mean) ** 2 for other in self.others)
        return math.sqrt(squares / (len(self.others) - 1))


def rollouts() -> tuple[list[Group], list[Rollout]]:
    """The same samples as plugins see them and as references do."""
    rng, of_statistics = np.random.default_rng(3), np.random.default_rng(4)
    lengths = [[len(mask) for mask in masks] for masks in MASKS]
    groups = [group(rewards, own) for rewards, own in zip(REWARDS, lengths, strict=True)]
    found = []
    for i, (one, rewards) in enumerate(zip(groups, REWARDS, strict=True)):
        row = replace(one.prompt.row, metadata={"reference_rewards": REFERENCE_REWARDS[i]})
        one.prompt = replace(one.prompt, row=row)
        for j, (sample, bits) in enumerate(zip(one.samples, MASKS[i], strict=True)):
            mask = np.array([bit == "1" for bit in bits])
            old = -np.abs(rng.normal(1, 0.5, len(mask)))
            arrays = [
                np.minimum(old + rng.normal(0, scale, len(mask)), -0.05) for scale in (0.4, 0.0, 0.3, 0.3)
            ]
            new, old, reference, teacher, values = (
                np.float32(array).astype(np.float64) for array in (*arrays, rng.normal(0, 1, len(mask)))
            )
            engine = np.float32(np.minimum(old + rng.normal(0, 0.2, len(mask)), -0.05)).astype(np.float64)
            sample.loss_mask, sample.log_probs = np.float32(mask), np.float32(engine * mask)
            sample.policy_log_probs, sample.values = old, values
            sample.reference_log_probs, sample.teacher_log_probs = reference, teacher
            entropies, shares = of_statistics.random((2, len(mask)))
            probs = np.exp(old)
            entropies, squares = np.float32(entropies), np.float32(probs**2 + shares * (1 - probs) ** 2)
            sample.policy_entropies, sample.policy_squared_probs = entropies, squares
            sample.greedy_reward = GREEDY_REWARDS[i]
            sample.value_after = 10 + float(rng.normal())
            sample.status = Status.TRUNCATED if (i, j) in TRUNCATED else Status.COMPLETED
            made = [torch.tensor(array[mask]) for array in (new, old, reference, teacher, values, engine)]
            made[0].requires_grad_()
            facts = sample.reward, rewards, (i, j) in TRUNCATED, torch.tensor(mask), sample.value_after
            sample.rewards = {"right": sample.reward - PARTS[j], "short": PARTS[j] / 2}
            sample.reward_weights = {"right": 1.0, "short": 2.0}
            statistics = [torch.tensor(array[mask].astype(np.float64)) for array in (entropies, squares)]
            found.append(
                Rollout(
                    *facts, *made, sample.rewards, i, REFERENCE_REWARDS[i], *statistics, GREEDY_REWARDS[i]
                )
            )
    failed = make_sample(length=3, status=Status.FAILED, id="0-9")
    failed.policy_entropies = np.full(3, 9.0, np.float32)
    groups[0].samples.insert(FAILED, failed)
    return groups, found


def rewarded_rollouts() -> tuple[list[Group], list[Rollout]]:
    """The same samples with a reward for each turn, some of which do not add up to the sample's."""
    groups, step = rollouts()
    samples = of_step(groups, [sample for one in groups for sample in one.samples])
    for number, (sample, one) in enumerate(zip(samples, step, strict=True)):
        edges = np.flatnonzero(np.diff(one.mask.numpy(), prepend=False, append=False)).reshape(-1, 2)
        rewards = [0.5 * (number + turn) - 0.75 for turn in range(len(edges))]
        ends = [int(end) for _, end in edges]
        sample.turn_rewards = tuple(map(TurnReward, ends, rewards))
        rewards[-1] = one.reward - sum(rewards[:-1])
        one.turns = [(int(end - start), own) for (start, end), own in zip(edges, rewards, strict=True)]
    return groups, step


def of_step(groups: list[Group], arrays: list[Any]) -> list[Any]:
    """The arrays of the samples that references see."""
    samples = [sample for one in groups for sample in one.samples]
    pairs = zip(samples, arrays, strict=True)
    return [array for sample, array in pairs if sample.status is not Status.FAILED]


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
    old, engine = (spread(step, [getattr(one, name) for one in step]) for name in ("old", "engine"))
    lengths = torch.tensor([len(one.mask) for one in step])
    fields = {
        "log_probs": spread(step, [one.new for one in step]).requires_grad_(),
        "entropy": torch.zeros_like(old),
        "old_log_probs": old,
        "rollout_log_probs": engine,
        "reference_log_probs": spread(step, [one.reference for one in step]),
        "advantages": joined(advantages),
        "mask": torch.cat([one.mask for one in step]).double(),
        "sample": torch.repeat_interleave(torch.arange(len(step)), lengths),
    }
    return LossInputs(**(fields | changes), num_samples=len(step))


def joined(arrays: list[Any]) -> torch.Tensor:
    """The arrays of all samples one after another, as the trainer concatenates them."""
    return torch.from_numpy(np.concatenate(arrays)).double()


def reduced(step: list[Rollout], losses: list[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """Token losses as one number: DeepSeekMath's equation 3, DAPO's 8, Dr. GRPO's with a constant length."""
    if reduction == "per_sample_mean":
        return torch.stack([own.mean() for own in losses]).mean()
    total = torch.cat(losses).sum()
    return total / (len(step) * LONGEST if reduction == "dr_grpo" else sum(len(own) for own in losses))


def constant(value: float, one: Rollout) -> torch.Tensor:
    return torch.full_like(one.old, value)


def clipped(one: Rollout, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Returns the clipped loss of each token: PPO, equation 7."""
    losses = []
    for ratio, advantage in zip((one.new - one.old).exp(), advantages, strict=True):
        inside = min(max(ratio, ratio.new_tensor(1 - low)), ratio.new_tensor(1 + high))
        losses.append(-torch.minimum(ratio * advantage, inside * advantage))
    return torch.stack(losses)


def whitened(advantages: list[torch.Tensor]) -> list[torch.Tensor]:
    everything = torch.cat(advantages)
    scale = torch.sqrt(everything.var(unbiased=True) + 1e-8)
    return [(one - everything.mean()) / scale for one in advantages]


def check_step(
    name: str, params: dict[str, Any], reduction: Reduction, reference: Any, samples: Any = rollouts
) -> None:
    """Token losses, the step's loss and its gradient, for both sides from the same rollouts."""
    algorithm = build("algorithms", name, params)
    groups, step = samples()
    if algorithm.needs.pairs:
        step = step[:6]
    advantages = algorithm.advantages(groups)
    assert not advantages[FAILED].any()
    inputs = loss_inputs(step, of_step(groups, advantages)[: len(step)])
    if algorithm.needs.marks:
        inputs = replace(inputs, marks=joined(of_step(groups, algorithm.marks(groups, advantages))))
    losses, expected = algorithm.loss(inputs).loss, reference(step)
    torch.testing.assert_close(losses[inputs.mask > 0], torch.cat(expected), rtol=1e-6, atol=1e-6)

    masks = [one.mask.numpy().astype(np.float32) for one in step]
    scales = token_scales(masks, [str(number) for number in range(len(step))], reduction, LONGEST)
    loss = (losses * inputs.mask * torch.from_numpy(scales)[inputs.sample]).sum()
    total = reduced(step, expected, reduction)
    torch.testing.assert_close(loss, total, rtol=1e-6, atol=1e-6)
    loss.backward()
    total.backward()
    gradients = torch.cat([one.new.grad for one in step if one.new.grad is not None])
    torch.testing.assert_close(inputs.log_probs.grad[inputs.mask > 0], gradients, rtol=1e-5, atol=1e-7)
    assert not inputs.log_probs.grad[inputs.mask == 0].any()
