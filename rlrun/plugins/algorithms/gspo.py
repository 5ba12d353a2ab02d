"""GSPO: group sequence policy optimisation (https://arxiv.org/abs/2507.18071)."""

from pydantic import Field

from rlrun.plugins.algorithms.grpo import GRPO, GRPOParams
from rlrun.plugins.algorithms.objective import SymmetricClip, clipped_objective
from rlrun.plugins.algorithms.policy_loss import mean_divergence
from rlrun.plugins.types import LossInputs, LossOutputs


class GSPOParams(SymmetricClip, GRPOParams):
    """GRPO's parameters; a sequence's ratio moves less than a token's, so the clip range is far narrower."""

    clip: float = Field(default=3e-4, gt=0, lt=1)
    """The ratio counts no lower than 1 - clip."""
    clip_high: float | None = Field(default=4e-4, gt=0)
    """The ratio counts no higher than 1 + clip_high. Where `clip` is given and this is not: as `clip`."""


class GSPO(GRPO):
    """GRPO's advantages; every token carries its sample's ratio, the geometric mean of its tokens' ratios."""

    Params = GSPOParams

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of the sequence ratio; the gradient flows through the mean."""
        log_ratio = -mean_divergence(inputs, inputs.old_log_probs)
        return clipped_objective(self.params, inputs, log_ratio[inputs.sample])
