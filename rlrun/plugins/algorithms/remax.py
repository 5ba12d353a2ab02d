"""ReMax: REINFORCE whose baseline is the reward of the greedy response (https://arxiv.org/abs/2310.10505)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.adaptive_entropy import FollowsEntropy
from rlrun.plugins.algorithms.advantages import discounted_sums, is_compared
from rlrun.plugins.algorithms.objective import PenalisedParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import kl_penalty, shape_advantages, trained_mask
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class ReMaxParams(PenalisedParams):
    """The parameters of the clipped loss, and the KL penalty."""


class ReMax(FollowsEntropy):
    """Compares a sample with the policy's greedy response to the same prompt; a prompt may have one sample.

    The greedy response is generated and scored beside the samples, and never trained on.
    """

    Params = ReMaxParams
    params: ReMaxParams
    api_version = 1
    advantage_formula = "r − reward of the greedy response"
    loss_formula = "as `grpo`"

    def __init__(self, params: ReMaxParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=False, greedy_reward=True)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns reward - greedy reward on each token, minus the KL penalties from that token on.

        Raises ValueError for a sample without a greedy reward.
        """
        values = [self._advantages(sample) for group in groups for sample in group.samples]
        return shape_advantages(self.params, groups, values)

    def _advantages(self, sample: Sample) -> NDArray[np.float64]:
        if not is_compared(sample):
            return np.zeros(len(sample.tokens))
        if sample.greedy_reward is None:
            raise ValueError(
                f"sample {sample.id} has no reward of a greedy response, which remax compares it with: train "
                "on samples that a job with this algorithm generated"
            )
        penalties = kl_penalty(self.params.kl, sample) * trained_mask(sample)
        return sample.reward - sample.greedy_reward - discounted_sums(penalties, 1.0)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
