"""GMPO: geometric-mean policy optimisation (https://arxiv.org/abs/2507.20673)."""

from pydantic import Field

from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared, OneRatio
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.types import LossInputs, LossOutputs


class GMPOParams(OneRatio, ComparedParams):
    """GRPO's advantages, and the bounds on the log of each token's ratio."""

    clip: float = Field(default=0.4, gt=0)
    """Lower bound of the log of the ratio is -clip."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper bound of the log of the ratio. None: as `clip`."""
    top_entropy: None = None
    """A sample has a single ratio, to which all of its tokens belong, so no token can be left out."""


class GMPO(GroupCompared):
    """Trains with the geometric mean of a sample's ratios, each of which is clipped before the mean.

    `trainer.reduction = "per_sample_mean"`, the default, is the published mean over samples.
    """

    Params = GMPOParams
    params: GMPOParams
    loss_formula = "−(geometric mean of the sample’s clipped ρ)·A"

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -geometric mean · advantage, on each token of the sample; the gradient flows through the
        mean to every token that is not clipped.
        """
        high = self.params.clip if self.params.clip_high is None else self.params.clip_high
        log_ratio = inputs.log_probs - inputs.old_log_probs
        inside = log_ratio.clamp(-self.params.clip, high)
        pessimistic = log_ratio.minimum(inside).where(inputs.advantages > 0, log_ratio.maximum(inside))
        count = inputs.sample_sum(inputs.mask).clamp(min=1)
        mean = inputs.sample_sum(pessimistic * inputs.mask) / count
        clipped = (pessimistic != log_ratio).to(log_ratio.dtype)
        return objective(self.params, inputs, -mean.exp()[inputs.sample] * inputs.advantages, clipped)
