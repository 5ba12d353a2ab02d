"""GKD, generalised knowledge distillation: the policy learns the teacher's whole distribution at each token
of its own responses (https://arxiv.org/abs/2306.13649).

The loss of a token is the divergence itself, with its gradient, and not an estimate from the sampled token as
in `on_policy_distillation`. The gradient does not flow through the sampling (the paper's section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rlrun.plugins.algorithms.advantages import zero_advantages
from rlrun.plugins.algorithms.divergence import DivergenceParams
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class GKDParams(DivergenceParams):
    """The divergence, and whose responses it is computed on."""

    responses: Literal["policy", "data"] = "policy"
    """Whose responses are trained on. "policy": the policy generates them (on-policy). "data": the rows
    contain them, as for SFT."""


class GKD:
    """Minimises the divergence from the teacher's distribution at each token; rewards are only measured."""

    Params = GKDParams
    api_version = 1
    advantage_formula = "none"
    loss_formula = "β · KL(teacher ‖ M) + (1 − β) · KL(new ‖ M), M = β · teacher + (1 − β) · new"

    def __init__(self, params: GKDParams) -> None:
        self.params = params
        self.needs = Needs(
            rollout=params.responses == "policy",
            rewards=False,
            teacher=True,
            divergence=params.required,
            old_log_probs=False,
        )

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns zeros, because the loss does not read advantages."""
        return zero_advantages(groups)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns the divergence from the teacher at each token."""
        assert inputs.divergence is not None, "needs.divergence was declared"
        metrics = {"divergence": inputs.divergence.detach(), "entropy": inputs.entropy.detach()}
        return LossOutputs(loss=inputs.divergence, metrics=metrics)
