"""REINFORCE++-baseline: the group's mean as baseline, the step's spread as scale (https://arxiv.org/abs/2501.03262)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rlrun.plugins.algorithms.advantages import group_relative
from rlrun.plugins.algorithms.objective import PenalisedParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import penalty, shaped
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class BaselineParams(PenalisedParams):
    """REINFORCE++-baseline has no parameters beside those of the clipped loss."""

    normalize_advantages: Literal[True] = True
    """Zero mean and unit variance over all trained tokens of the step: part of the algorithm."""


class ReinforcePlusPlusBaseline:
    """reward - group mean, whitened over all tokens of the step instead of divided by the group's own std."""

    Params = BaselineParams
    api_version = 1

    def __init__(self, params: BaselineParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Whitened differences; ValueError when no token of the step is trained."""
        samples = [sample for group in groups for sample in group.samples]
        apart = group_relative(groups, normalize_std=False)
        penalised = [
            values - penalty(self.params.kl, sample) for sample, values in zip(samples, apart, strict=True)
        ]
        return shaped(self.params, groups, penalised)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of each token's ratio."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
