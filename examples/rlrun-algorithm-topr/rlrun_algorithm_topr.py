"""TOPR: tapered off-policy REINFORCE (https://arxiv.org/abs/2503.14286), as a plugin of one file."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs


class TOPRParams(BaseModel):
    """The parameter of TOPR."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cap: float = Field(default=1.0, gt=0)
    """Largest weight of a sample whose reward is below its group's mean."""


class TOPR:
    """Trains fully on good samples, and on bad ones only as far as the policy still generates them."""

    Params = TOPRParams
    api_version = 1
    needs = Needs(group_relative=True)

    def __init__(self, params: TOPRParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns reward - group mean for each sample, the same value on each of its tokens."""
        arrays: list[NDArray[np.float32]] = []
        for group in groups:
            rewards = [sample.reward for sample in group.samples]
            # a failed sample has no reward; it is not trained on either
            mean = np.nanmean(rewards) if np.isfinite(rewards).any() else 0.0
            differences = np.nan_to_num(np.array(rewards) - mean)
            arrays += [
                np.full(len(sample.tokens), value, np.float32)
                for sample, value in zip(group.samples, differences, strict=True)
            ]
        return arrays

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -weight · advantage · log-prob. The weight of a bad sample is its probability ratio, at
        most `cap`.
        """
        change = inputs.sample_sum((inputs.log_probs - inputs.old_log_probs).detach() * inputs.mask)
        tapered = change.exp().clamp(max=self.params.cap)[inputs.sample]
        weight = tapered.where(inputs.advantages < 0, tapered.new_ones(tapered.shape))
        loss = -weight * inputs.advantages * inputs.log_probs
        return LossOutputs(loss, {"pg_loss": loss.detach(), "topr/weight": weight})
