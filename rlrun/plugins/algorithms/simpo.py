"""SimPO: simple preference optimisation without a reference (https://arxiv.org/abs/2405.14734)."""

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


class SimPOParams(Section):
    """The parameters of SimPO."""

    beta: float = Field(default=2.0, gt=0)
    """Scale of the difference between the responses' mean log-probs."""
    gamma: float = Field(default=0.5, ge=0)
    """Margin by which the preferred response's reward should exceed the other's. The authors' configurations
    have a gamma of 0.25 to 0.8 times beta; their code's default is 0.25."""


class SimPO(PairLoss):
    """Compares the mean log-probs of the two responses, so that length gives no advantage."""

    Params = SimPOParams
    needs = Needs(rollout=False, rewards=False, old_log_probs=False, pairs=True)
    loss_formula = "−log σ(β · (mean new of preferred − of rejected) − γ) of the pair"

    def __init__(self, params: SimPOParams) -> None:
        self.params = params

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -log sigmoid(margin - gamma), one number for each pair, on each of the pair's tokens."""
        preferred, rejected = of_pairs(self.params.beta * token_means(inputs, inputs.log_probs))
        margin = preferred - rejected
        loss = negative_log_sigmoid(margin - self.params.gamma)
        wins = (margin > 0).to(loss.dtype)
        return pair_outputs(
            inputs, loss, {"simpo_loss": loss, "preferred_frac": wins, "reward_margin": margin}
        )
