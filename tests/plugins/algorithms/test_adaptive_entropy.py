"""The weight of the entropy bonus that follows a target, against Skywork-OR1's formula."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.types import Group, LossInputs, Status
from tests.plugins.algorithms.rollouts import loss_inputs, of_step, rollouts

TARGET = {"target": 0.5, "step": 0.01, "high": 0.02}
ENTROPIES = [0.4, 0.3, 0.6, 0.45, 0.49, 0.1, 0.7, 0.7, 0.7, 0.4]


def step_of(entropy: float) -> list[Group]:
    """A step whose trained tokens have this entropy in the mean; those of all others count for nothing."""
    groups, _ = rollouts()
    samples = [sample for one in groups for sample in one.samples if sample.status is not Status.FAILED]
    own = np.concatenate([sample.policy_entropies[sample.loss_mask > 0] for sample in samples])
    shift = entropy - own.astype(np.float64).mean()
    for sample in samples:
        shifted = sample.policy_entropies.astype(np.float64) + shift
        sample.policy_entropies = np.where(sample.loss_mask > 0, shifted, 50.0)
    return groups


def paper(entropies: list[float], first: float, low: float, high: float) -> list[float]:
    """alpha_k = c_k where e_k <= target, else 0; c_k+1 = c_k + delta where e_k <= target, else minus."""
    weight, acting = first, []
    for entropy in entropies:
        below = entropy <= 0.5
        acting.append(weight if below else 0.0)
        weight = min(weight + 0.01, high) if below else max(weight - 0.01, low)
    return acting


def weights(algorithm: Any, entropies: list[float]) -> list[float]:
    acting = []
    for entropy in entropies:
        algorithm.observe(step_of(entropy))
        acting.append(algorithm.step_values()["entropy_coef"])
    return acting


@pytest.mark.parametrize("name", ["grpo", "ppo", "rloo", "reinforce_plus_plus", "on_policy_distillation"])
@pytest.mark.parametrize(("first", "low"), [(0.0, 0.0), (0.015, 0.005)])
def test_the_weight_of_each_step_is_the_paper_s(name: str, first: float, low: float) -> None:
    params = {"entropy_coef": first, "adaptive_entropy": TARGET | {"low": low}}
    found = weights(build("algorithms", name, params), ENTROPIES)
    assert found == paper(ENTROPIES, first, low, 0.02)
    assert 0.0 in found and max(found) == 0.02


def test_a_restored_weight_continues_to_the_bit() -> None:
    params = {"adaptive_entropy": TARGET}
    whole = weights(build("algorithms", "grpo", params), ENTROPIES)
    first, second = (build("algorithms", "grpo", params) for _ in range(2))
    begun = weights(first, ENTROPIES[:6])
    second.restore(json.loads(json.dumps(dict(first.state()))))
    assert begun + weights(second, ENTROPIES[6:]) == whole


def entropy_inputs(values: Any) -> LossInputs:
    groups, step = rollouts()
    inputs = loss_inputs(step, of_step(groups, build("algorithms", "grpo", {}).advantages(groups)))
    entropy = torch.linspace(0.1, 2.0, len(inputs.mask)).double().requires_grad_()
    return replace(inputs, entropy=entropy, step_values=values)


@pytest.mark.parametrize("entropy", [0.4, 0.6])
def test_the_loss_is_that_of_the_weight_that_acts(entropy: float) -> None:
    """A weight that cannot change is `entropy_coef` below the target, and no bonus above it."""
    fixed = {"target": 0.5, "low": 0.03, "high": 0.03}
    adaptive = build("algorithms", "grpo", {"entropy_coef": 0.03, "adaptive_entropy": fixed})
    adaptive.observe(step_of(entropy))
    values = adaptive.step_values()
    assert values == {"entropy_coef": 0.03 if entropy < 0.5 else 0.0}
    found = []
    for algorithm in (adaptive, build("algorithms", "grpo", values)):
        inputs = entropy_inputs(values)
        loss = algorithm.loss(inputs).loss
        gradients = torch.autograd.grad(loss.sum(), (inputs.log_probs, inputs.entropy), allow_unused=True)
        found.append((loss, *gradients))
    for own, expected in zip(*found, strict=True):
        assert (own is None and expected is None) or torch.equal(own, expected)
    assert (found[0][2] is None) == (entropy > 0.5)


def test_a_step_without_trained_tokens_changes_nothing() -> None:
    algorithm = build("algorithms", "grpo", {"entropy_coef": 0.01, "adaptive_entropy": TARGET})
    groups = step_of(0.1)
    for sample in (sample for one in groups for sample in one.samples):
        sample.loss_mask = np.zeros_like(sample.loss_mask)
    algorithm.observe(groups)
    assert algorithm.state() == {"entropy_coef": 0.01}


def test_the_smallest_weight_is_not_above_the_largest() -> None:
    with pytest.raises(PluginError, match=r"low \(0\.5\) must not be above high \(0\.1\)"):
        build("algorithms", "grpo", {"adaptive_entropy": {"low": 0.5, "high": 0.1}})
