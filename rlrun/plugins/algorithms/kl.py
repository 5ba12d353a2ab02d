"""Estimators of the KL divergence from the policy to the reference, for each token
(http://joschu.net/blog/kl-approx.html).
"""

from collections.abc import Callable
from operator import methodcaller
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rlrun.specs.sections.section import Section

Estimator = Literal["k1", "k2", "k3", "low_var_kl"]

MAX_LOW_VAR_KL = 10.0
MIN_DIFFERENCE = -80.0
"""exp(80) is close to float32's largest number."""


class KLTerm(Section):
    """A penalty on the distance to the reference policy that is added to the loss."""

    type: Estimator = "low_var_kl"
    """With d = policy - reference log-prob: d, d²/2, exp(-d) - 1 + d, and the latter within ±10."""
    coef: float = Field(default=0.001, ge=0)
    """Weight in the loss; 0 only measures the divergence."""
    unbiased: bool = False
    """Multiply by policy/old probabilities, which makes the gradient unbiased off-policy. `k1` needs it: its
    own gradient is 0 in expectation."""

    @model_validator(mode="after")
    def _trains(self) -> Self:
        if self.type == "k1" and self.coef > 0 and not self.unbiased:
            raise ValueError(
                "k1 in the loss trains nothing: its gradient is the score function, whose mean is 0; set "
                'unbiased = true, type = "k2" or "low_var_kl", or coef = 0 to measure it'
            )
        return self


class KLPenalty(Section):
    """A penalty on the distance to the reference policy that is subtracted from each token's reward."""

    type: Estimator = "k1"
    """With d = policy - reference log-prob: d, d²/2, exp(-d) - 1 + d, and the latter within ±10."""
    coef: float = Field(default=0.01, gt=0)
    """Weight in the reward."""


class KLSection(Section):
    """Adds the distance to the reference to the loss. Without it, no reference model is loaded."""

    in_loss: KLTerm | None = None
    """`{ type = "low_var_kl", coef = 0.001 }`"""


class RewardKLSection(KLSection):
    """Adds the distance to the reference to the loss, or subtracts it from the rewards, but not both."""

    in_reward: KLPenalty | None = None
    """`{ type = "k1", coef = 0.01 }`"""

    @model_validator(mode="after")
    def _once(self) -> Self:
        if self.in_loss and self.in_reward:
            raise ValueError("in_loss and in_reward penalise the same distance twice: remove one of the two")
        return self


def token_kl(term: KLTerm, log_probs: Any, reference_log_probs: Any, old_log_probs: Any) -> Any:
    """Returns the divergence `[T]` by the term's estimator, with gradient."""
    divergence = estimate_kl(term.type, log_probs - reference_log_probs)
    if term.unbiased:
        divergence = divergence * (log_probs - old_log_probs).exp()
    return _bound(term.type, divergence)


def reward_penalty(term: KLPenalty, log_probs: Any, reference_log_probs: Any) -> Any:
    """Returns `[R]` float64 what is subtracted from the rewards of a response's tokens; log-probs are numpy
    arrays.
    """
    import numpy as np

    difference = np.asarray(log_probs, np.float64) - reference_log_probs
    return term.coef * _bound(term.type, estimate_kl(term.type, difference, np.exp))


def estimate_kl(
    estimator: Estimator, difference: Any, exp: Callable[[Any], Any] = methodcaller("exp")
) -> Any:
    """Returns the estimate for `difference` = policy - reference log-prob, before the bounds of low_var_kl.

    `difference` is a tensor, or a numpy array together with numpy's `exp`.
    """
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference * difference / 2
        case "k3":
            return exp(-difference) - 1 + difference
        case "low_var_kl":
            # The result is bounded to ±10 anyway; without this limit exp could overflow, and the bound's
            # gradient would be 0 * inf.
            near = difference.clip(min=MIN_DIFFERENCE)
            return exp(-near) - 1 + near


def _bound(estimator: Estimator, divergence: Any) -> Any:
    if estimator == "low_var_kl":
        return divergence.clip(-MAX_LOW_VAR_KL, MAX_LOW_VAR_KL)
    return divergence
