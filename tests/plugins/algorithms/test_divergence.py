"""GKD's divergences and their gradients, against the paper's formulas in float64."""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms.divergence import GeneralisedJSD
from rlrun.plugins.registry import build
from rlrun.plugins.testing import group, micro_batch
from rlrun.plugins.types import Needs

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)


def log_softmax(values: Any) -> Any:
    return values - np.log(np.exp(values).sum(-1, keepdims=True))


def kl(first: Any, second: Any) -> Any:
    """KL(P || Q), from the probabilities of both."""
    return (first * np.log(first / second)).sum(-1)


def paper(beta: float, teacher: Any, policy: Any) -> Any:
    """Equation 1 of arXiv 2306.13649, with the KLs at its ends."""
    p, q = np.exp(teacher), np.exp(policy)
    if beta in (0, 1):
        return kl(p, q) if beta == 0 else kl(q, p)
    mixture = beta * p + (1 - beta) * q
    return beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)


def logits(seed: int) -> Any:
    return np.random.default_rng(seed).normal(scale=2.0, size=(5, 7))


def measured(beta: float, teacher: Any, policy: Any) -> tuple[Any, Any]:
    """The divergences, and the gradient of their sum for the policy's logits."""
    z = torch.tensor(policy, requires_grad=True)
    values = GeneralisedJSD(beta)(z.log_softmax(-1), torch.tensor(log_softmax(teacher)))
    values.sum().backward()
    assert z.grad is not None
    return values.detach().numpy(), z.grad.numpy()


@pytest.mark.parametrize("beta", BETAS)
def test_a_divergence_and_its_gradient_are_the_paper_s(beta: float) -> None:
    teacher, policy, step = logits(0), logits(1), 1e-6
    values, gradient = measured(beta, teacher, policy)
    np.testing.assert_allclose(values, paper(beta, log_softmax(teacher), log_softmax(policy)), rtol=1e-12)
    for row, column in product(range(5), range(7)):
        moved = [policy.copy(), policy.copy()]
        for sign, each in zip((1, -1), moved, strict=True):
            each[row, column] += sign * step
        up, down = (paper(beta, log_softmax(teacher), log_softmax(each)).sum() for each in moved)
        assert gradient[row, column] == pytest.approx((up - down) / (2 * step), abs=1e-8)


def test_the_ends_are_the_limits_of_the_divergence_divided_by_its_weight() -> None:
    teacher, policy, small = logits(0), logits(1), 1e-7
    for end, near, weight in ((0.0, small, small), (1.0, 1 - small, small)):
        of_end, of_near = measured(end, teacher, policy), measured(near, teacher, policy)
        for exact, close in zip(of_end, of_near, strict=True):
            np.testing.assert_allclose(close / weight, exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", BETAS)
def test_a_policy_that_is_the_teacher_has_no_divergence_and_no_gradient(beta: float) -> None:
    values, gradient = measured(beta, logits(0), logits(0))
    assert np.abs(values).max() < 1e-15
    assert np.abs(gradient).max() < 1e-15


def test_tokens_that_one_of_them_never_says_give_finite_numbers() -> None:
    policy = torch.tensor([[0.0, -200.0, -1e9]]).log_softmax(-1).requires_grad_()
    for beta in BETAS:
        value = GeneralisedJSD(beta)(policy, torch.tensor([[-150.0, 0.0, -80.0]]))
        (gradient,) = torch.autograd.grad(value.sum(), policy)
        assert value.isfinite().all() and gradient.isfinite().all()


def test_gkd_needs_a_teacher_and_no_reward() -> None:
    algorithm = build("algorithms", "gkd", {"beta": 0.0, "top_k": 5, "temperature": 2.0})
    divergence = algorithm.needs.divergence
    assert algorithm.needs == Needs(rewards=False, teacher=True, divergence=divergence, old_log_probs=False)
    assert (divergence.distance, divergence.top_k, divergence.temperature) == (GeneralisedJSD(0.0), 5, 2.0)
    assert not build("algorithms", "gkd", {"responses": "data"}).needs.rollout
    assert not any(array.any() for array in algorithm.advantages([group([1.0, 0.0])]))


def test_gkd_s_loss_is_the_divergence_alone() -> None:
    inputs = micro_batch()
    outputs = build("algorithms", "gkd", {}).loss(inputs)
    assert torch.equal(outputs.loss, inputs.divergence)
    assert torch.equal(outputs.metrics["divergence"], inputs.divergence)


@pytest.mark.parametrize("name", ["grpo", "ppo", "on_policy_distillation"])
def test_any_algorithm_may_add_the_divergence_to_its_loss(name: str) -> None:
    """Instead of the distance at the sampled token, which changes the advantages."""
    params = {"distillation": {"coef": 0.3, "divergence": {"beta": 1.0, "top_k": 9}}}
    algorithm = build("algorithms", name, json.loads(json.dumps(params)))
    plain = build("algorithms", "grpo" if name == "on_policy_distillation" else name, {})
    assert algorithm.needs.teacher and algorithm.needs.divergence.top_k == 9
    assert algorithm.needs.policy_log_probs == plain.needs.policy_log_probs
    inputs = micro_batch()
    outputs, without = algorithm.loss(inputs), plain.loss(inputs)
    torch.testing.assert_close(outputs.loss, without.loss + 0.3 * inputs.divergence)
    assert torch.equal(outputs.metrics["divergence"], inputs.divergence)
    (gradient,) = torch.autograd.grad(outputs.loss.sum(), inputs.divergence)
    assert (gradient == np.float32(0.3)).all()
    groups = [group([1.0, 0.0])]
    expected = [0 * sample.tokens for sample in groups[0].samples]
    if name != "on_policy_distillation":
        expected = plain.advantages(groups)
    for ours, theirs in zip(algorithm.advantages(groups), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
