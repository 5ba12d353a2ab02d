"""GRPO: group relative policy optimisation (DeepSeekMath, https://arxiv.org/abs/2402.03300).

GRPO samples several responses to each prompt and compares their rewards within that group, so it needs no
critic. A job uses the class below in two places:

    driver:   rewards of all groups      -> `advantages` -> one array per sample
    trainer:  log-probs of a micro-batch -> `loss`       -> one loss per token

The framework masks tokens that are not trained, reduces the token losses and computes the gradient.
"""

from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective
from rlrun.plugins.types import LossInputs, LossOutputs


class GRPOParams(ComparedParams, ClipParams):
    """The parameters of GRPO. The defaults are GRPO as published, except that no KL term is added."""


class GRPO(GroupCompared):
    """Computes advantages relative to the group, and trains on them with PPO's clipped loss."""

    Params = GRPOParams
    params: GRPOParams
    advantage_formula = "(r − group mean) / (group std + 1e-6)"
    loss_formula = "max(−ρA, −clip(ρ, 1 − clip, 1 + clip_high)·A)"

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        log_ratio = inputs.log_probs - inputs.old_log_probs  # [T]
        return clipped_objective(self.params, inputs, log_ratio)
