"""REINFORCE++: discounted returns, whitened over the whole step (https://arxiv.org/abs/2501.03262)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.algorithms.advantages import discounted_sums, is_compared, reward_at_end, whiten
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class ReinforcePlusPlusParams(ClipParams):
    """The clipped loss's parameters, and how far a reward reaches back."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount for each token between a token and the end of the response."""


class ReinforcePlusPlus:
    """Neither group nor critic: a token's advantage is its discounted return against the whole step."""

    Params = ReinforcePlusPlusParams
    api_version = 1

    def __init__(self, params: ReinforcePlusPlusParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=False)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Whitened returns; ValueError when no token of the step is trained."""
        samples = [sample for group in groups for sample in group.samples]
        masks = [sample.loss_mask * is_compared(sample) for sample in samples]
        returns = [self._returns(sample, mask) for sample, mask in zip(samples, masks, strict=True)]
        return whiten(returns, masks)

    def _returns(self, sample: Sample, mask: NDArray[np.float32]) -> NDArray[np.float32]:
        rewards = reward_at_end(sample.reward, mask)
        return discounted_sums(rewards, self.params.gamma).astype(np.float32)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of each token's ratio."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
