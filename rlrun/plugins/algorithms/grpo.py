"""GRPO: group relative policy optimisation (DeepSeekMath, https://arxiv.org/abs/2402.03300)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rlrun.plugins.algorithms.advantages import centred, compared, spread
from rlrun.plugins.algorithms.objective import ObjectiveParams, needs_of, objective
from rlrun.plugins.algorithms.policy_loss import clip_loss
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs


class GRPOParams(ObjectiveParams):
    """GRPO as published, without a KL term unless one is asked for."""

    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    clip: float = Field(default=0.2, gt=0, lt=1)
    """The ratio counts no lower than 1 - clip."""
    clip_high: float | None = Field(default=None, gt=0)
    """The ratio counts no higher than 1 + clip_high. None: as `clip`."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest ratio that counts for a negative advantage. None: unbounded."""


class GRPO:
    """A sample's advantage is its reward relative to its group; the loss is PPO's clipped one."""

    Params = GRPOParams
    api_version = 1

    def __init__(self, params: GRPOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """(reward - group mean) / group std, the same on every token of a sample."""
        normalize = self.params.normalize_std
        return [array for group in groups for array in spread(group, centred(compared(group), normalize))]

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped policy loss with the objective's shared terms."""
        params = self.params
        ratio = (inputs.log_probs - inputs.old_log_probs).exp()
        high = params.clip if params.clip_high is None else params.clip_high
        pg_loss, clipped = clip_loss(ratio, inputs.advantages, params.clip, high, params.dual_clip)
        return objective(params, inputs, pg_loss, clipped)
