"""DPO: direct preference optimisation (https://arxiv.org/abs/2305.18290)."""

from pydantic import Field

from rlrun.plugins.algorithms.pairs import PairLoss, negative_log_sigmoid, of_pairs, pair_outputs
from rlrun.plugins.types import LossInputs, LossOutputs, Needs
from rlrun.specs.sections.section import Section


class DPOParams(Section):
    """The parameter of DPO."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is kept near the reference."""


class DPO(PairLoss):
    """Trains on rows that contain a preferred and a rejected response; uses neither rollouts nor rewards."""

    Params = DPOParams
    needs = Needs(rollout=False, rewards=False, old_log_probs=False, reference=True, pairs=True)
    loss_formula = "−log σ(β · margin) of the pair"

    def __init__(self, params: DPOParams) -> None:
        self.params = params

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -log sigmoid(margin), one number for each pair, on each of the pair's tokens.

        margin = beta · ((preferred - reference) - (rejected - reference)), with log-probs summed over
        responses.
        """
        assert inputs.reference_log_probs is not None, "needs.reference was declared"
        gains = inputs.sample_sum((inputs.log_probs - inputs.reference_log_probs) * inputs.mask)
        preferred, rejected = of_pairs(self.params.beta * gains)
        margin = preferred - rejected
        loss = negative_log_sigmoid(margin)
        wins = (margin > 0).to(loss.dtype)
        return pair_outputs(inputs, loss, {"dpo_loss": loss, "preferred_frac": wins, "reward_margin": margin})
