"""Parameters with which an algorithm becomes another one, in value and gradient."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from rlrun.plugins.registry import build
from rlrun.plugins.types import LossInputs
from tests.plugins.algorithms.rollouts import loss_inputs, of_step, rollouts

OPEN = {"clip": 1 - 1e-9, "clip_high": 1e9}
"""Bounds that no ratio reaches."""
FLOATS = [field.name for field in fields(LossInputs) if field.name not in ("sample", "num_samples")]


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
