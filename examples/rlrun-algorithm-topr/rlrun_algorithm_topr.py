"""TOPR: tapered off-policy REINFORCE (https://arxiv.org/abs/2503.14286), as a plugin of one file."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs


class TOPRParams(BaseModel):
    """How far a bad sample's weight may rise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cap: float = Field(default=1.0, gt=0)
    """Largest weight of a sample that did worse than its group."""


class TOPR:
    """Good samples count in full, however unlikely they have become; bad ones fade with their probability."""

    Params = TOPRParams
    api_version = 1
    needs = Needs(group_relative=True)

    def __init__(self, params: TOPRParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Reward minus the group's mean, the same on every token of a sample."""
        arrays = []
        for group in groups:
            rewards = [one.reward for one in group.samples]
            # a failed sample has no reward; it is not trained on either
            mean = np.nanmean(rewards) if np.isfinite(rewards).any() else 0.0
            apart = np.nan_to_num(np.array(rewards) - mean)
            arrays += [
                np.full(len(one.tokens), value, np.float32)
                for one, value in zip(group.samples, apart, strict=True)
            ]
        return arrays

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """-weight · advantage · log-prob; the weight of a bad sample is its probability's ratio, capped."""
        change = inputs.sample_sum((inputs.log_probs - inputs.old_log_probs).detach() * inputs.mask)
        tapered = change.exp().clamp(max=self.params.cap)[inputs.sample]
        weight = tapered.where(inputs.advantages < 0, tapered.new_ones(tapered.shape))
        loss = -weight * inputs.advantages * inputs.log_probs
        return LossOutputs(loss, {"pg_loss": loss.detach(), "topr/weight": weight})
