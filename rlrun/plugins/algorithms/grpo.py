"""GRPO: group relative policy optimisation (DeepSeekMath, https://arxiv.org/abs/2402.03300)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import group_relative
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import shaped
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class GRPOParams(ClipParams):
    """GRPO as published, without a KL term unless one is asked for."""

    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""


class GRPO:
    """A sample's advantage is its reward relative to its group; the loss is PPO's clipped one."""

    Params = GRPOParams
    api_version = 1

    def __init__(self, params: GRPOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """(reward - group mean) / group std, the same on every token of a sample."""
        return shaped(self.params, groups, group_relative(groups, self.params.normalize_std))

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of each token's ratio."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
