"""GSPO-token: GSPO for advantages that differ within a sample (https://arxiv.org/abs/2507.18071, section
4.3).
"""

from rlrun.plugins.algorithms.gspo import GSPO, SampleClipParams
from rlrun.plugins.algorithms.objective import clipped_objective
from rlrun.plugins.algorithms.policy_loss import mean_divergence
from rlrun.plugins.types import LossInputs, LossOutputs


class GSPOTokenParams(SampleClipParams):
    """GSPO's parameters."""


class GSPOToken(GSPO):
    """Gives every token GSPO's ratio in value, and the gradient of that token alone.

    With the same advantage on all tokens of a sample, its value and gradient are GSPO's.
    """

    Params = GSPOTokenParams
    loss_formula = "as `gspo`, with the gradient of each token’s own ρ"

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns the clipped loss of stop_gradient(sample's ratio) · policy / stop_gradient(policy)."""
        sample_ratio = -mean_divergence(inputs, inputs.old_log_probs).detach()
        log_ratio = sample_ratio[inputs.sample] + inputs.log_probs - inputs.log_probs.detach()
        return clipped_objective(self.params, inputs, log_ratio)
