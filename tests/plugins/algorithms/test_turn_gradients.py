"""Which baselines of turns are unbiased: exact gradients of a small decision process, by enumeration.

The policy is a table of logits over the actions of each state. Every group of n episodes is enumerated with
its probability, so the expected value of an algorithm's gradient is exact. It must be the gradient of the
expected return, up to one factor for the whole table. The advantages of plugins are float32; all rewards and
values are small multiples of 1/4, so nothing is rounded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.plugins.testing import sample as make_sample
from rlrun.plugins.types import Group, LossInputs, Sample, TurnReward
from rlrun.runner.batches.reduction import token_scales

END = -1
PROCESS: dict[int, list[list[tuple[float, int, float]]]] = {
    0: [[(1.0, END, 0.5)], [(0.75, 1, 0.25), (0.25, 2, -0.5)]],
    1: [[(1.0, END, -1.0)], [(1.0, 3, 1.0)]],
    2: [[(1.0, END, 2.0)], [(1.0, 3, -0.25)]],
    3: [[(1.0, END, 0.75)], [(1.0, END, 3.0)]],
}
"""Of each state and action: the probability of each next state, with the reward. Action 0 stops."""
LOGITS = [[0.2, -0.3], [0.5, 0.1], [-0.4, 0.3], [0.0, -0.8]]
VALUES = [0.5, -1.0, 2.0, 0.25]
"""What a critic says of each state; far from the truth, which is no matter."""


@dataclass(frozen=True)
class Episode:
    states: tuple[int, ...]
    actions: tuple[int, ...]
    rewards: tuple[float, ...]
    chance: float
    """The probability of the world's part."""

    def probability(self, log_policy: torch.Tensor) -> torch.Tensor:
        return self.chance * log_policy[self.states, self.actions].sum().exp()

    def as_sample(self, number: int) -> Sample:
        """One token for each action, with the token of an observation before each but the first."""
        turns = len(self.actions)
        sample = make_sample(length=2 * turns - 1, reward=sum(self.rewards), id=f"0-{number}")
        sample.loss_mask = (np.arange(2 * turns - 1) % 2 == 0).astype(np.float32)
        sample.log_probs = -sample.loss_mask
        ends = range(1, 2 * turns, 2)
        sample.turn_rewards = tuple(map(TurnReward, ends, self.rewards))
        sample.values = np.full(2 * turns - 1, 100.0, np.float32)
        sample.values[::2] = [VALUES[state] for state in self.states]
        return sample


def episodes(state: int = 0) -> Iterator[Episode]:
    for action, outcomes in enumerate(PROCESS[state]):
        for chance, following, reward in outcomes:
            rests = [Episode((), (), (), 1.0)] if following == END else episodes(following)
            for rest in rests:
                yield Episode(
                    (state, *rest.states),
                    (action, *rest.actions),
                    (reward, *rest.rewards),
                    chance * rest.chance,
                )


ALL = list(episodes())
Advantages = Callable[[Group], Sequence[Any]]
Loss = Callable[[LossInputs], torch.Tensor]


def exact_gradient() -> torch.Tensor:
    """The gradient of the expected return."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    log_policy = logits.log_softmax(-1)
    sum(sum(episode.rewards) * episode.probability(log_policy) for episode in ALL).backward()
    return logits.grad


def expected_gradient(advantages: Advantages, loss: Loss, size: int) -> torch.Tensor:
    """The expected value, over groups of `size` episodes, of minus the gradient of the reduced loss."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    log_policy = logits.log_softmax(-1)
    total = torch.zeros((), dtype=torch.float64)
    for group in combinations_with_replacement(ALL, size):
        orders = factorial(size) // prod(factorial(group.count(episode)) for episode in set(group))
        probability = torch.stack([episode.probability(log_policy) for episode in group]).prod().detach()
        total = total - orders * probability * group_loss(group, advantages, loss, log_policy)
    total.backward()
    return logits.grad


def group_loss(
    group: Sequence[Episode], advantages: Advantages, loss: Loss, log_policy: torch.Tensor
) -> torch.Tensor:
    """The loss of one optimizer step on a group. Only `dr_grpo` divides by nothing that the policy chose."""
    samples = [episode.as_sample(number) for number, episode in enumerate(group)]
    masks = [sample.loss_mask for sample in samples]
    mask = torch.from_numpy(np.concatenate(masks)).double()
    log_probs = torch.zeros_like(mask)
    states, actions = (
        [x for episode in group for x in getattr(episode, name)] for name in ("states", "actions")
    )
    log_probs = log_probs.masked_scatter(mask > 0, log_policy[states, actions])
    numbers = torch.arange(len(group)).repeat_interleave(torch.tensor([len(own) for own in masks]))
    given = advantages(Group(samples[0].prompt, samples))
    inputs = LossInputs(
        log_probs=log_probs,
        entropy=torch.zeros_like(mask),
        old_log_probs=log_probs.detach(),
        rollout_log_probs=log_probs.detach(),
        reference_log_probs=None,
        advantages=torch.from_numpy(np.concatenate(given)).double(),
        mask=mask,
        sample=numbers,
        num_samples=len(group),
    )
    scales = torch.from_numpy(token_scales(masks, [sample.id for sample in samples], "dr_grpo", 1))
    return (loss(inputs) * mask * scales[numbers]).sum()


@pytest.mark.parametrize(
    ("name", "params", "size", "factor"),
    [
        pytest.param("rloo", {"turn_rewards": "to_go"}, 3, 1.0, id="rloo"),
        # the mean over the group has the sample itself in it, which scales every turn by 1 - 1 / n
        pytest.param("grpo", {"turn_rewards": "to_go", "normalize_std": False}, 2, 0.5, id="grpo"),
        pytest.param("dr_grpo", {"turn_rewards": "to_go"}, 2, 0.5, id="dr_grpo"),
        pytest.param("grpo", {"turn_rewards": "to_go", "subtract_mean": False}, 1, 1.0, id="no_baseline"),
        pytest.param("rloo", {}, 2, 1.0, id="rloo_by_episode"),
        pytest.param("ppo", {}, 1, 1.0, id="ppo_with_a_baseline_of_the_state"),
    ],
)
def test_the_expected_gradient_is_that_of_the_expected_return(
    name: str, params: dict[str, Any], size: int, factor: float
) -> None:
    algorithm = build("algorithms", name, params)
    gradient = expected_gradient(
        lambda group: algorithm.advantages([group]), lambda inputs: algorithm.loss(inputs).loss, size
    )
    torch.testing.assert_close(gradient, factor * exact_gradient(), rtol=0, atol=1e-10)


def to_go_minus_mean_of_those_that_got_there(rewards: list[list[float]]) -> list[list[float]]:
    """The rewards to go of a turn, less their mean over the samples that reached it."""
    returns = [np.cumsum(own[::-1])[::-1].tolist() for own in rewards]
    return less_the_mean_of_those_that_got_there(returns)


def sum_of_normalised_rewards(rewards: list[list[float]]) -> list[list[float]]:
    """verl's issue 7244: each turn's reward less the mean over the samples that reached it; the advantage is
    the sum of these from the turn on. How many means it subtracts depends on when the policy stops.
    """
    normalised = less_the_mean_of_those_that_got_there(rewards)
    return [np.cumsum(own[::-1])[::-1].tolist() for own in normalised]


def less_the_mean_of_those_that_got_there(values: list[list[float]]) -> list[list[float]]:
    return [
        [value - np.mean([one[turn] for one in values if len(one) > turn]) for turn, value in enumerate(own)]
        for own in values
    ]


@pytest.mark.parametrize(
    "advantages_of", [to_go_minus_mean_of_those_that_got_there, sum_of_normalised_rewards]
)
def test_means_over_the_samples_that_reached_a_turn_are_biased(advantages_of: Any) -> None:
    """No factor makes the expected gradient right."""

    def advantages(group: Group) -> list[Any]:
        rewards = [[turn.reward for turn in sample.turn_rewards] for sample in group.samples]
        arrays = [np.zeros(len(sample.tokens)) for sample in group.samples]
        for array, own in zip(arrays, advantages_of(rewards), strict=True):
            array[::2] = own
        return arrays

    gradient = expected_gradient(advantages, lambda inputs: -inputs.advantages * inputs.log_probs, 2)
    exact = exact_gradient()
    factor = (gradient * exact).sum() / exact.square().sum()
    assert (gradient - factor * exact).abs().max() > 0.05 * exact.abs().max()
