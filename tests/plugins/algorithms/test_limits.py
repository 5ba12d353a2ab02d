"""Parameters with which an algorithm becomes another one, in value and gradient."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.plugins.testing import group
from rlrun.plugins.types import Group, LossInputs
from tests.plugins.algorithms.rollouts import loss_inputs, of_step, rollouts

OPEN = {"clip": 1 - 1e-9, "clip_high": 1e9}
"""Bounds that no ratio reaches."""
OTHERS = ("sample", "num_samples", "step_values")
FLOATS = [field.name for field in fields(LossInputs) if field.name not in OTHERS]


def inputs() -> LossInputs:
    groups, step = rollouts()
    return loss_inputs(step, of_step(groups, build("algorithms", "grpo", {}).advantages(groups)))


def per_sample(name: str, params: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss of each sample, and the gradient of their sum."""
    given = inputs()
    loss = build("algorithms", name, params).loss(given).loss
    means = given.sample_sum(loss * given.mask) / given.sample_sum(given.mask)
    means.sum().backward()
    assert given.log_probs.grad is not None
    return means.detach(), given.log_probs.grad


@pytest.mark.parametrize(
    ("name", "params", "other", "other_params"),
    [
        ("dppo", {"threshold": 2.0}, "grpo", OPEN),
        ("dppo", {"divergence": "kl", "threshold": 1e3}, "grpo", OPEN),
        ("gmpo", {"clip": 50.0}, "gspo", OPEN),
        ("gspo_token", {}, "gspo", {}),
        ("gspo_token", OPEN, "gspo", OPEN),
    ],
)
def test_equals(name: str, params: dict[str, Any], other: str, other_params: dict[str, Any]) -> None:
    values, gradients = per_sample(name, params)
    expected_values, expected_gradients = per_sample(other, other_params)
    torch.testing.assert_close(values, expected_values)
    torch.testing.assert_close(gradients, expected_gradients)


def advantages_of(name: str, groups: list[Group], params: dict[str, Any] | None = None) -> np.ndarray:
    return np.concatenate(build("algorithms", name, params or {}).advantages(groups))


@pytest.mark.parametrize("name", ["grpo", "reinforce_plus_plus", "dppo"])
def test_all_tokens_of_high_entropy_are_all_tokens(name: str) -> None:
    groups, _ = rollouts()
    plain = advantages_of(name, groups)
    assert (advantages_of(name, groups, {"top_entropy": 1.0}) == plain).all()
    some = advantages_of(name, groups, {"top_entropy": 0.3})
    assert ((some == plain) | (some == 0)).all() and (some != plain).any()


def test_gdpo_of_one_reward_is_grpo_scaled_over_the_step() -> None:
    groups = [group([1.0, 0.0, 0.5], [1, 1, 1]), group([4.0, 0.0], [1, 1])]
    for one in groups:
        for sample in one.samples:
            sample.rewards = {"right": sample.reward}
    plain = advantages_of("grpo", groups)
    np.testing.assert_allclose(advantages_of("gdpo", groups), plain / (plain.std(ddof=1) + 1e-6), rtol=1e-5)


def test_gdpo_tells_apart_what_the_sum_of_rewards_does_not() -> None:
    """The paper's example: totals of 1 and 2 have the same GRPO advantage beside 0."""
    found = {}
    for totals in ([0.0, 1.0], [0.0, 2.0]):
        one = group(totals, [1, 1])
        for sample in one.samples:
            sample.rewards = {"a": float(sample.reward > 0), "b": float(sample.reward > 1)}
        found[totals[1]] = build("algorithms", "gdpo", {}).scores_of(one)[1]
    assert found[2.0] == pytest.approx(2 * found[1.0], rel=1e-5)


def test_opo_of_equal_lengths_subtracts_the_mean() -> None:
    groups = [group([1.0, 0.0, 0.25], [3, 3, 3])]
    np.testing.assert_allclose(advantages_of("opo", groups), advantages_of("dr_grpo", groups), rtol=1e-6)


def test_max_rl_of_a_group_with_one_success_in_n_weighs_it_n_times() -> None:
    groups = [group([1.0, 0.0, 0.0, 0.0], [1, 1, 1, 1]), group([0.0, 0.0], [1, 1])]
    assert advantages_of("max_rl", groups).tolist() == [3, -1, -1, -1, 0, 0]


@pytest.mark.parametrize(
    ("rewards", "normalize_std", "expected"),
    [
        ([1.0, 0.0, 0.0], False, [1, 0, 0]),
        ([1.0, 1.0, 0.0], False, [0, 0, 0]),
        ([0.5, 3.0, 1.0], False, [0, 2, 0]),
        ([1.0, 0.0], True, [2**0.5, 0]),
        ([1.0], False, [0]),
    ],
)
def test_pass_at_k_only_rewards_a_single_best_sample(
    rewards: list[float], normalize_std: bool, expected: list[float]
) -> None:
    groups = [group(rewards, [1] * len(rewards))]
    found = advantages_of("pass_at_k", groups, {"normalize_std": normalize_std})
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_samples_of_one_execution_count_once() -> None:
    """Two samples of one execution are one sample in every comparison."""
    apart, together = group([1.0, 0.0, 0.25], [2, 2, 2]), group([1.0, 1.0, 0.0, 0.25], [1, 1, 2, 2])
    for sample in together.samples[:2]:
        sample.execution_id = "0-0"
    for name in ("max_rl", "opo", "pass_at_k", "gdpo"):
        np.testing.assert_allclose(advantages_of(name, [together]), advantages_of(name, [apart]), rtol=1e-6)


def test_sapo_of_a_small_temperature_has_the_gradient_of_the_plain_ratio() -> None:
    _, gradients = per_sample("sapo", {"tau": 1e-6, "tau_negative": 1e-6})
    torch.testing.assert_close(gradients, per_sample("grpo", OPEN)[1], rtol=1e-5, atol=1e-8)


def test_sapo_of_a_large_temperature_only_trains_where_the_ratio_is_1() -> None:
    given = inputs()
    log_probs = given.log_probs.detach().clone()
    log_probs[1::2] = given.old_log_probs[1::2]
    given = replace(given, log_probs=log_probs.requires_grad_())
    build("algorithms", "sapo", {"tau": 1e6, "tau_negative": 1e6}).loss(given).loss.sum().backward()
    same = log_probs.detach() == given.old_log_probs
    torch.testing.assert_close(log_probs.grad, -given.advantages * same)


@pytest.mark.parametrize("name", ["sapo", "dppo"])
@pytest.mark.parametrize("far", [-200.0, 200.0])
def test_ratios_beyond_float32_have_finite_gradients(name: str, far: float) -> None:
    given = inputs()
    numbers = {name: value.detach().float() for name in FLOATS if (value := getattr(given, name)) is not None}
    log_probs = numbers["log_probs"].requires_grad_()
    given = replace(given, **numbers | {"old_log_probs": log_probs.detach() - far})
    build("algorithms", name, {}).loss(given).loss.sum().backward()
    assert log_probs.grad is not None and log_probs.grad.isfinite().all()


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "m2po"])
def test_without_marks_only_the_ratio_remains(name: str) -> None:
    given = replace(inputs(), marks=torch.zeros(len(inputs().advantages), dtype=torch.float64))
    earlier = given.rollout_log_probs if name == "m2po" else given.old_log_probs
    plain = -(given.log_probs - earlier).exp() * given.advantages
    params = OPEN if name == "clip_cov" else {}
    torch.testing.assert_close(build("algorithms", name, params).loss(given).loss, plain)


def test_clip_cov_draws_the_same_tokens_for_the_same_prompts() -> None:
    groups, _ = rollouts()
    algorithm = build("algorithms", "clip_cov", {"fraction": 0.1, "low": -9.0, "high": 9.0})
    advantages = algorithm.advantages(groups)
    first, again = (np.concatenate(algorithm.marks(groups, advantages)) for _ in range(2))
    assert first.sum() == 2 and (first == again).all()
    groups[0].prompt = replace(groups[0].prompt, index=9)
    assert (np.concatenate(algorithm.marks(groups, advantages)) != first).any()


def test_m2po_keeps_all_tokens_of_a_fresh_step_and_one_of_a_stale_one() -> None:
    groups, _ = rollouts()
    algorithm = build("algorithms", "m2po", {})
    trained = sum(int(sample.loss_mask.sum()) for one in groups for sample in one.samples if sample.rewards)
    for shift, left_out in ((0.0, 0), (3.0, trained - 1)):
        for one in groups:
            for sample in one.samples:
                sample.policy_log_probs = sample.log_probs + shift
        marks = algorithm.marks(groups, algorithm.advantages(groups))
        assert np.concatenate(marks).sum() == left_out
