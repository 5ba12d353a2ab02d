"""REINFORCE++-baseline: the group's mean as baseline, the step's spread as scale (https://arxiv.org/abs/2501.03262)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import group_relative, is_compared, whiten
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class BaselineParams(ClipParams):
    """REINFORCE++-baseline has no parameters beside those of the clipped loss."""


class ReinforcePlusPlusBaseline:
    """reward - group mean, whitened over all tokens of the step instead of divided by the group's own std."""

    Params = BaselineParams
    api_version = 1

    def __init__(self, params: BaselineParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Whitened differences; ValueError when no token of the step is trained."""
        masks = [sample.loss_mask * is_compared(sample) for group in groups for sample in group.samples]
        return whiten(group_relative(groups, normalize_std=False), masks)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of each token's ratio."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
