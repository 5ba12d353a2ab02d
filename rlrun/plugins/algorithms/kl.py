"""Estimates of the KL divergence from the policy to the reference, token by token (http://joschu.net/blog/kl-approx.html)."""

from typing import Any, Literal

from pydantic import Field

from rlrun.specs.section import Section

Estimator = Literal["k1", "k2", "k3", "low_var_kl"]

LARGEST_LOG_RATIO = 20.0
LARGEST_LOW_VAR_KL = 10.0


class KLTerm(Section):
    """A penalty on the distance to the reference policy, added to the loss."""

    type: Estimator = "low_var_kl"
    """With d = policy - reference log-prob: d, d²/2, exp(-d) - 1 + d, and the latter within ±10."""
    coef: float = Field(default=0.001, ge=0)
    """Weight in the loss; 0 measures the divergence and trains nothing with it."""
    unbiased: bool = False
    """Multiply by policy/old probabilities, which makes the gradient unbiased off-policy."""


class KLSection(Section):
    """Where the distance to the reference enters; nowhere: no reference model is loaded."""

    in_loss: KLTerm | None = None
    """`{ type = "low_var_kl", coef = 0.001 }`"""


def token_kl(term: KLTerm, log_probs: Any, reference_log_probs: Any, old_log_probs: Any) -> Any:
    """`[T]` divergence by the term's estimator, with gradient."""
    divergence = estimate(term.type, log_probs - reference_log_probs)
    if term.unbiased:
        divergence = divergence * (log_probs - old_log_probs).exp()
    if term.type == "low_var_kl":
        divergence = divergence.clamp(-LARGEST_LOW_VAR_KL, LARGEST_LOW_VAR_KL)
    return divergence


def estimate(estimator: Estimator, difference: Any) -> Any:
    """The estimator of `difference` = policy - reference log-prob `[T]`, before low_var_kl's clamp."""
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            return (-difference).exp() - 1 + difference
        case "low_var_kl":
            # Beyond ±20 the clamped result is the same, and exp cannot overflow into a gradient of 0 * inf.
            bounded = difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
            return (-bounded).exp() - 1 + bounded
