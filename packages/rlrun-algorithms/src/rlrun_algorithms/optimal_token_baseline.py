"""OTB: the optimal token baseline (https://arxiv.org/abs/2602.07078), in verl's form for several turns.

    W[t] = sum over the tokens up to t of 1 - 2 · π(token) + sum of π² over the vocabulary
    baseline[t] = Σ W[t] · reward / Σ W[t], over the group's executions that reach token t

The summand is the squared norm of the gradient of a token's log-prob with respect to the logits: W grows
where the policy was uncertain, so that executions with large gradients count most in the baseline.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.algorithms.adaptive_entropy import FollowsEntropy
from rlrun.plugins.algorithms.advantages import is_compared
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample

Scores = NDArray[np.float64]

_EPSILON = 1e-8


class OptimalTokenBaselineParams(ClipParams):
    """The parameters of the clipped loss."""


class OptimalTokenBaseline(FollowsEntropy):
    """Subtracts a baseline of each position from the reward, which minimises the variance of the gradient of
    the tokens up to there. Only trained tokens are positions, so a tool's answer does not count.
    """

    Params = OptimalTokenBaselineParams
    params: OptimalTokenBaselineParams
    api_version = 1
    advantage_formula = (
        "r − Σ W·r / Σ W over the group at each token, where W sums 1 − 2π + Σπ² over the tokens so far"
    )
    loss_formula = "as `grpo`"

    def __init__(self, params: OptimalTokenBaselineParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(
            params, group_relative=True, policy_log_probs=True, policy_squared_probs=True
        )

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns reward - baseline on each trained token, 0 on all other tokens."""
        arrays = [array for group in groups for array in token_advantages(group)]
        return shape_advantages(self.params, groups, arrays)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)


def token_advantages(group: Group) -> list[Scores]:
    """Returns reward - baseline for each sample of a group `[R]`.

    The tokens of an execution's samples follow each other. Where only one execution is left the baseline is
    0, as in verl. A group with a single execution has nothing to compare with and gets advantage 0.
    """
    arrays = [np.zeros(len(sample.tokens)) for sample in group.samples]
    executions: dict[str, list[int]] = {}
    for number, sample in enumerate(group.samples):
        if is_compared(sample) and sample.loss_mask.any():
            executions.setdefault(sample.execution, []).append(number)
    if len(executions) < 2:
        return arrays
    own = [[group.samples[number] for number in numbers] for numbers in executions.values()]
    rewards = [np.concatenate([np.full(_count(one), one.reward) for one in samples]) for samples in own]
    energies = [np.concatenate([_energy(one) for one in samples]).cumsum() for samples in own]
    baseline = _baseline(rewards, energies)
    for numbers, values in zip(executions.values(), rewards, strict=True):
        advantages, start = values - baseline[: len(values)], 0
        for number in numbers:
            trained = group.samples[number].loss_mask > 0
            arrays[number][trained] = advantages[start : start + trained.sum()]
            start += int(trained.sum())
    return arrays


def _count(sample: Sample) -> int:
    return int((sample.loss_mask > 0).sum())


def _energy(sample: Sample) -> Scores:
    """Returns the squared gradient norm of each trained token's log-prob with respect to the logits."""
    assert sample.policy_log_probs is not None, "needs.policy_log_probs"
    assert sample.policy_squared_probs is not None, "needs.policy_squared_probs"
    probs = np.exp(sample.policy_log_probs.astype(np.float64))
    energies = 1 - 2 * probs + sample.policy_squared_probs
    trained: Scores = np.maximum(energies, 0.0)[sample.loss_mask > 0]
    return trained


def _baseline(rewards: Sequence[Scores], energies: Sequence[Scores]) -> Scores:
    """Returns the baseline of each position up to the longest execution's end."""
    weighted, total, count = np.zeros((3, max(map(len, rewards))))
    for own, energy in zip(rewards, energies, strict=True):
        weighted[: len(own)] += own * energy
        total[: len(own)] += energy
        count[: len(own)] += 1
    baseline: Scores = np.where(count > 1, weighted / (total + _EPSILON), 0.0)
    return baseline
