"""ORPO: odds ratio preference optimisation (https://arxiv.org/abs/2403.07691)."""

from typing import Any

from pydantic import Field

from rlrun.plugins.algorithms.pairs import (
    PairLoss,
    negative_log_sigmoid,
    of_pairs,
    pair_outputs,
    token_means,
)
from rlrun.plugins.types import LossInputs, LossOutputs, Needs
from rlrun.specs.sections.section import Section

SMALLEST_GAP = 1e-6
"""A mean log-prob above minus this counts as this: the odds of a certain response are infinite."""


class ORPOParams(Section):
    """The parameter of ORPO."""

    coef: float = Field(default=0.1, gt=0)
    """Weight of the odds ratio's loss beside the likelihood of the preferred response. The paper calls it
    lambda."""


class ORPO(PairLoss):
    """Raises the likelihood of the preferred response, and its odds over those of the rejected one."""

    Params = ORPOParams
    needs = Needs(rollout=False, rewards=False, old_log_probs=False, pairs=True)
    loss_formula = "−mean new of preferred − coef · log σ(log odds ratio) of the pair"

    def __init__(self, params: ORPOParams) -> None:
        self.params = params

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns the loss of each pair on each of its tokens. Likelihoods are geometric means.

        TRL takes the first term over the prompt's tokens too; here as in the paper it is the response's.
        """
        means = token_means(inputs, inputs.log_probs)
        likely, (odds, other_odds) = of_pairs(means)[0], of_pairs(_log_odds(means))
        ratio = odds - other_odds
        loss = -likely + self.params.coef * negative_log_sigmoid(ratio)
        metrics = {"orpo_loss": loss, "preferred_frac": (ratio > 0).to(loss.dtype), "log_odds_ratio": ratio}
        return pair_outputs(inputs, loss, metrics)


def _log_odds(log_probs: Any) -> Any:
    """Returns log(p / (1 - p)) of probabilities that are given by their logs."""
    near = log_probs.clamp(max=-SMALLEST_GAP)
    return near - (-near.expm1()).log()
