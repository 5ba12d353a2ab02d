"""GRPO: group relative policy optimisation (DeepSeekMath, https://arxiv.org/abs/2402.03300).

GRPO samples several responses to each prompt and compares their rewards within that group, so it needs no
critic. A job uses the class below in two places:

    driver:   rewards of all groups      -> `advantages` -> one array per sample
    trainer:  log-probs of a micro-batch -> `loss`       -> one loss per token

The framework masks tokens that are not trained, reduces the token losses and computes the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import Comparison, group_relative
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class GRPOParams(Comparison, ClipParams):
    """The parameters of GRPO. The defaults are GRPO as published, except that no KL term is added."""


class GRPO:
    """Computes advantages relative to the group, and trains on them with PPO's clipped loss."""

    Params = GRPOParams
    api_version = 1
    advantage_formula = "(r − group mean) / (group std + 1e-6)"
    loss_formula = "max(−ρA, −clip(ρ, 1 − clip, 1 + clip_high)·A)"

    def __init__(self, params: GRPOParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=params.subtract_mean)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns (reward - group mean) / group std for each sample, the same value on each of its tokens."""
        params = self.params
        differences = group_relative(groups, params.normalize_std, params.subtract_mean)
        return shape_advantages(params, groups, differences)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        log_ratio = inputs.log_probs - inputs.old_log_probs  # [T]
        return clipped_objective(self.params, inputs, log_ratio)
