"""IPO: identity preference optimisation (https://arxiv.org/abs/2310.12036)."""

from pydantic import Field

from rlrun.plugins.algorithms.pairs import PairLoss, of_pairs, pair_outputs, token_means
from rlrun.plugins.types import LossInputs, LossOutputs, Needs
from rlrun.specs.sections.section import Section


class IPOParams(Section):
    """The parameter of IPO."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is kept near the reference: the margin of a pair is pulled to 1 / (2 · beta).
    The paper calls it tau."""


class IPO(PairLoss):
    """Pulls the margin of a pair to a fixed number, so that it cannot grow without bound."""

    Params = IPOParams
    needs = Needs(rollout=False, rewards=False, old_log_probs=False, reference=True, pairs=True)
    loss_formula = "(margin − 1/(2β))² of the pair, from log-probs averaged over the responses"

    def __init__(self, params: IPOParams) -> None:
        self.params = params

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns (margin - 1 / (2 · beta))², one number for each pair, on each of the pair's tokens.

        margin = (preferred - reference) - (rejected - reference), with log-probs averaged over responses, as
        in TRL, whose authors agreed on it with IPO's.
        """
        assert inputs.reference_log_probs is not None, "needs.reference was declared"
        preferred, rejected = of_pairs(token_means(inputs, inputs.log_probs - inputs.reference_log_probs))
        margin = preferred - rejected
        loss = (margin - 1 / (2 * self.params.beta)) ** 2
        wins = (margin > 0).to(loss.dtype)
        return pair_outputs(inputs, loss, {"ipo_loss": loss, "preferred_frac": wins, "reward_margin": margin})
