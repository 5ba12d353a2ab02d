"""A weight of the entropy bonus that follows a target entropy (Skywork-OR1, https://arxiv.org/abs/2505.22312).

With the policy's mean entropy e[k] before the update of step k, and the weight c[k]:

    weight in the loss of step k = c[k] where e[k] <= target, else 0
    c[k + 1] = c[k] + step where e[k] <= target, else c[k] - step, within low and high

e[k] is the mean over all trained tokens of the step, on the driver, so it does not depend on ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

from pydantic import Field, model_validator

from rlrun.plugins.algorithms.shaping import is_trainable
from rlrun.plugins.types import Group
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
else:
    from rlrun.plugins import lazy_numpy as np

COEF = "entropy_coef"
"""The name of the weight, as a number of the step and as a metric."""


class AdaptiveEntropy(Section):
    """How the weight of the entropy bonus follows the policy's entropy."""

    target: float = Field(default=0.2, gt=0)
    """Mean entropy of a token, in nats, below which the bonus acts. The default is Skywork-OR1's, for a model
    that has been fine-tuned; `train/entropy` shows what the policy has."""
    step: float = Field(default=0.005, gt=0)
    """How much the weight rises in a step whose entropy is not above the target, and falls in any other."""
    low: float = Field(default=0.0, ge=0)
    """Smallest weight."""
    high: float = Field(default=1.0, gt=0)
    """Largest weight."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low:g}) must not be above high ({self.high:g})")
        return self


class EntropyParams(Protocol):
    """The parameters that `FollowsEntropy` reads."""

    @property
    def entropy_coef(self) -> float:
        """The first weight."""

    @property
    def adaptive_entropy(self) -> AdaptiveEntropy | None:
        """How the weight changes; None for a fixed one."""


class EntropyWeight:
    """The weight of the next step, and the one that acts in this step."""

    def __init__(self, params: AdaptiveEntropy, start: float) -> None:
        self._params = params
        self.next = start
        self.acting = 0.0

    def observe(self, entropy: float) -> None:
        """Begins a step with the policy's mean entropy."""
        params, is_low = self._params, entropy <= self._params.target
        self.acting = self.next if is_low else 0.0
        self.next = min(self.next + params.step, params.high) if is_low else self.next - params.step
        self.next = max(self.next, params.low)


class FollowsEntropy:
    """A base of algorithms with the shared terms, which makes them a `StatefulAlgorithm` where
    `adaptive_entropy` is set (`needs.state`).
    """

    params: EntropyParams

    @cached_property
    def _weight(self) -> EntropyWeight:
        assert self.params.adaptive_entropy is not None, "needs.state"
        return EntropyWeight(self.params.adaptive_entropy, self.params.entropy_coef)

    def observe(self, groups: Sequence[Group]) -> None:
        """Chooses the step's weight from the entropies of the trained tokens, if there are any."""
        if len(entropies := _trained_entropies(groups)):
            self._weight.observe(float(entropies.mean()))

    def step_values(self) -> Mapping[str, float]:
        """Returns the weight that acts in this step."""
        return {COEF: self._weight.acting}

    def state(self) -> Mapping[str, Any]:
        """Returns the weight of the next step."""
        return {COEF: self._weight.next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues with a saved weight."""
        self._weight.next = float(state[COEF])


def _trained_entropies(groups: Sequence[Group]) -> Any:
    """Returns the entropies of all trained tokens, float64."""
    arrays = [np.zeros(0)]
    for sample in (sample for group in groups for sample in group.samples):
        if is_trainable(sample):
            assert sample.policy_entropies is not None, "needs.policy_entropies"
            arrays.append(sample.policy_entropies[sample.loss_mask > 0].astype(np.float64))
    return np.concatenate(arrays)
