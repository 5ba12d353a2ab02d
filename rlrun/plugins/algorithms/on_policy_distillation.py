"""On-policy distillation: the policy answers, a teacher judges every token (https://arxiv.org/abs/2306.13649).

Its advantage is coef · (teacher - policy log-prob): the reverse KL's gradient on the policy's own samples
(https://thinkingmachines.ai/blog/on-policy-distillation). `distillation` in any other algorithm adds the same
to that one's advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.objective import ClipParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import Distillation, shaped
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class OnPolicyDistillationParams(ClipParams):
    """The clipped loss's parameters; rewards are measured where there are any, and train nothing."""

    distillation: Distillation = Distillation()
    """Distance to the model of [teacher], taken off advantages of 0."""


class OnPolicyDistillation:
    """No reward: the teacher's log-probs of the policy's own tokens are the advantages."""

    Params = OnPolicyDistillationParams
    api_version = 1

    def __init__(self, params: OnPolicyDistillationParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=False, rewards=False)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """coef · (teacher - policy log-prob) of each token."""
        zeros = [np.zeros(len(one.tokens)) for group in groups for one in group.samples]
        return shaped(self.params, groups, zeros)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Clipped loss of each token's ratio."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
