"""KL-Cov: keeps the entropy by a KL penalty on tokens of high covariance (https://arxiv.org/abs/2505.22617)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.algorithms.covariance import mark_tokens, token_covariances
from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.types import Group, LossInputs, LossOutputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class KLCovParams(ComparedParams):
    """GRPO's advantages, and how many tokens get which penalty."""

    fraction: float = Field(default=2e-4, gt=0, le=1)
    """Share of the step's trained tokens that gets the penalty, at least one token. The paper has 0.002 for a
    model of 7 billion parameters and 0.0002 for one of 32 billion."""
    penalty: float = Field(default=1.0, ge=0)
    """Weight of |new - old log-prob| on these tokens."""


class KLCov(GroupCompared):
    """Trains with the plain ratio, and holds the tokens of the largest covariances near the old policy."""

    Params = KLCovParams
    params: KLCovParams
    loss_formula = "−ρA, plus `penalty`·|new − old| on the `fraction` of tokens with the largest covariances"
    further_needs = ("policy_log_probs", "marks")

    def marks(
        self, groups: Sequence[Group], advantages: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """Returns 1 on the tokens that get the penalty."""
        covariances, trained = token_covariances(groups, advantages)
        count = max(int(self.params.fraction * trained.sum()), 1)
        places = np.flatnonzero(trained)
        chosen = places[np.argsort(-covariances[places], kind="stable")[:count]]
        return mark_tokens(chosen, advantages)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -ratio · advantage, plus penalty · |new - old log-prob| on marked tokens, unclipped."""
        assert inputs.marks is not None, "needs.marks was declared"
        log_ratio = inputs.log_probs - inputs.old_log_probs
        penalty = self.params.penalty * log_ratio.abs() * inputs.marks
        pg_loss = -log_ratio.exp() * inputs.advantages + penalty
        outputs = objective(self.params, inputs, pg_loss, inputs.marks.new_zeros(inputs.marks.shape))
        return LossOutputs(outputs.loss, {**outputs.metrics, "cov_frac": inputs.marks})
