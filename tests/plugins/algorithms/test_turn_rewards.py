"""Rewards of turns in whole steps, against formulas written out turn by turn in float64 (rollouts.py)."""

from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms.advantages import (
    centre_rewards,
    group_relative,
    leave_one_out,
    returns_of_turns,
    token_rewards,
)
from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.testing import group
from rlrun.plugins.types import Group, TurnReward
from rlrun.runner.batches.reduction import Reduction
from tests.plugins.algorithms.rollouts import (
    Rollout,
    check_step,
    clipped,
    of_step,
    rewarded_rollouts,
    whitened,
)


def to_go(one: Rollout) -> list[float]:
    """Of each turn, its reward and those of the turns after it."""
    rewards = [reward for _, reward in one.turns]
    return [sum(rewards[turn:]) for turn in range(len(rewards))]


def on_turns(one: Rollout, values: list[float]) -> torch.Tensor:
    """Each turn's value on its tokens."""
    return torch.cat(
        [
            torch.full((length,), value, dtype=torch.float64)
            for (length, _), value in zip(one.turns, values, strict=True)
        ]
    )


def others(step: list[Rollout], one: Rollout, turn: int) -> list[float]:
    """The rewards to go of a turn in the other samples of the group; 0 where a sample had ended."""
    rest = [other for other in step if other.group == one.group and other is not one]
    return [(to_go(other) + [0.0] * 9)[turn] for other in rest]


def centred(step: list[Rollout]) -> list[torch.Tensor]:
    advantages = []
    for one in step:
        means = [
            (value + sum(others(step, one, turn))) / len(one.others) for turn, value in enumerate(to_go(one))
        ]
        advantages.append(on_turns(one, [v - mean for v, mean in zip(to_go(one), means, strict=True)]))
    return advantages


def scaled(step: list[Rollout]) -> list[torch.Tensor]:
    """The episodes' rewards give one scale for all turns."""
    return [array / (one.group_std + 1e-6) for one, array in zip(step, centred(step), strict=True)]


def left_out(step: list[Rollout]) -> list[torch.Tensor]:
    advantages = []
    for one in step:
        baselines = [np.mean(others(step, one, turn)) for turn in range(len(one.turns))]
        advantages.append(on_turns(one, [v - b for v, b in zip(to_go(one), baselines, strict=True)]))
    return advantages


def uncompared(step: list[Rollout]) -> list[torch.Tensor]:
    return [on_turns(one, to_go(one)) for one in step]


def rewards_of_tokens(one: Rollout) -> list[float]:
    """Each turn's reward on its last token."""
    return [value for length, reward in one.turns for value in [0.0] * (length - 1) + [reward]]


def discounted(values: list[float], discount: float) -> torch.Tensor:
    sums = [sum(discount ** (u - t) * values[u] for u in range(t, len(values))) for t in range(len(values))]
    return torch.tensor(sums, dtype=torch.float64)


def returns(step: list[Rollout]) -> list[torch.Tensor]:
    return whitened([discounted(rewards_of_tokens(one), 0.9) for one in step])


def gae(step: list[Rollout]) -> list[torch.Tensor]:
    advantages = []
    for one in step:
        values = [*one.values.tolist(), 0.0]
        deltas = [
            reward + 0.99 * values[t + 1] - values[t] for t, reward in enumerate(rewards_of_tokens(one))
        ]
        advantages.append(discounted(deltas, 0.99 * 0.95))
    return advantages


TO_GO = {"turn_rewards": "to_go"}
FORMULAS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "grpo": ("grpo", TO_GO, scaled),
    "without a scale": ("grpo", TO_GO | {"normalize_std": False}, centred),
    "without a baseline": ("grpo", TO_GO | {"subtract_mean": False}, uncompared),
    "rloo": ("rloo", TO_GO, left_out),
    "whitened": ("reinforce_plus_plus_baseline", TO_GO, lambda step: whitened(centred(step))),
    "reinforce_plus_plus": ("reinforce_plus_plus", {"gamma": 0.9}, returns),
    "ppo": ("ppo", {"gamma": 0.99, "lambd": 0.95}, gae),
}


@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
@pytest.mark.parametrize("formula", FORMULAS)
def test_a_step_with_rewards_of_turns(formula: str, reduction: Reduction) -> None:
    name, params, advantages = FORMULAS[formula]

    def losses(step: list[Rollout]) -> list[torch.Tensor]:
        return [clipped(one, a, 0.2, 0.2) for one, a in zip(step, advantages(step), strict=True)]

    check_step(name, params, reduction, losses, rewarded_rollouts)


def test_without_the_key_or_without_rewards_of_turns_the_episode_counts() -> None:
    groups, _ = rewarded_rollouts()
    by_episode = np.concatenate(build("algorithms", "grpo", {}).advantages(groups))
    for one in groups:
        for sample in one.samples:
            sample.turn_rewards = ()
    for params in ({}, TO_GO):
        np.testing.assert_array_equal(
            np.concatenate(build("algorithms", "grpo", params).advantages(groups)), by_episode
        )


def one_group(turns: list[list[float]]) -> Group:
    """Samples whose turns are one token each."""
    own = group([sum(rewards) for rewards in turns], [len(rewards) for rewards in turns])
    for sample, rewards in zip(own.samples, turns, strict=True):
        sample.turn_rewards = tuple(TurnReward(turn + 1, reward) for turn, reward in enumerate(rewards))
    return own


def test_an_execution_of_several_samples_counts_once_in_each_turn() -> None:
    own = one_group([[1.0, 4.0], [3.0], [2.0, 2.0]])
    own.samples[0].execution_id = own.samples[1].execution_id = "0-0"
    returns, executions = returns_of_turns(own)
    np.testing.assert_array_equal(returns, [[5, 3, 4], [4, 0, 2]])
    # the mean of the first execution is 4 in turn 0 and 2 in turn 1; so is the second execution's
    np.testing.assert_array_equal(centre_rewards(returns, False, executions), [[1, -1, 0], [2, -2, 0]])
    np.testing.assert_array_equal(leave_one_out(returns[1], executions), [2, -2, 0])
    relative = group_relative([own], False, True, "to_go")
    assert [array.tolist() for array in relative] == [[1, 2], [-1], [0, 0]]


def test_a_turn_that_is_not_trained_gives_its_reward_to_the_trained_token_before_it() -> None:
    [sample] = one_group([[1.0, 2.0, 4.0, 8.0]]).samples
    np.testing.assert_array_equal(token_rewards(sample, np.array([0, 1, 0, 1])), [0, 7, 0, 8])
    np.testing.assert_array_equal(token_rewards(sample, np.array([0, 1, 1, 0])), [0, 3, 12, 0])
    assert not token_rewards(sample, np.zeros(4)).any()


@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_one_ratio_for_all_turns_has_no_credit_for_single_ones(name: str) -> None:
    with pytest.raises(PluginError, match="turn_rewards"):
        build("algorithms", name, TO_GO)
    build("algorithms", "gspo_token", TO_GO)


def test_failed_samples_get_zeros() -> None:
    groups, _ = rewarded_rollouts()
    advantages = group_relative(groups, True, True, "to_go")
    assert len(of_step(groups, advantages)) == len(advantages) - 1


def test_a_demonstration_is_not_compared_with_what_the_policy_did() -> None:
    own = one_group([[1.0], [3.0]])
    shown = one_group([[9.0, 9.0]]).samples[0]
    shown.log_probs, shown.loss_mask = np.zeros(2, np.float32), np.zeros(2, np.float32)
    shown.cross_entropy, shown.turn_rewards, shown.execution_id = np.ones(2, np.float32), (), "0-1"
    own.samples[1].execution_id = "0-1"
    own.samples.insert(1, shown)
    for params in ({}, TO_GO):
        advantages = build("algorithms", "dr_grpo", params).advantages([own])
        assert [array.tolist() for array in advantages] == [[-1], [0, 0], [1]]
