"""On-policy distillation: the policy generates, and a teacher judges each token
(https://arxiv.org/abs/2306.13649).

The advantage of a token is coef · (teacher - policy log-prob), which is the gradient of the reverse KL on the
policy's own samples (https://thinkingmachines.ai/blog/on-policy-distillation). The parameter `distillation`
of any other algorithm adds the same term to that algorithm's advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.adaptive_entropy import FollowsEntropy
from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import Distillation, shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class OnPolicyDistillationParams(ClipParams):
    """The clipped loss's parameters. Rewards, where there are any, are only measured."""

    distillation: Distillation = Distillation()
    """Distance to the model of [teacher]; its negative is the advantage."""


class OnPolicyDistillation(FollowsEntropy):
    """Computes advantages from the teacher's log-probs of the policy's own tokens, without any reward."""

    Params = OnPolicyDistillationParams
    params: OnPolicyDistillationParams
    api_version = 1
    advantage_formula = "coef · (teacher − policy log-prob)"
    loss_formula = "as `grpo`"

    def __init__(self, params: OnPolicyDistillationParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=False, rewards=False)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns coef · (teacher - policy log-prob) for each token."""
        zeros = [np.zeros(len(sample.tokens)) for group in groups for sample in group.samples]
        return shape_advantages(self.params, groups, zeros)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
