"""Clip-Cov: keeps the entropy by leaving out tokens of high covariance (https://arxiv.org/abs/2505.22617)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.algorithms.covariance import mark_tokens, token_covariances
from rlrun.plugins.algorithms.grpo import GRPO, GRPOParams
from rlrun.plugins.algorithms.objective import clip_terms, objective
from rlrun.plugins.types import Group, LossInputs, LossOutputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class ClipCovParams(GRPOParams):
    """GRPO's parameters, and which tokens are left out."""

    fraction: float = Field(default=2e-4, gt=0, le=1)
    """Share of the step's trained tokens that is left out, at least one token where any qualifies."""
    low: float = 1.0
    """Tokens of a covariance above this may be left out."""
    high: float = 5.0
    """Tokens of a covariance below this may be left out."""


class ClipCov(GRPO):
    """Leaves out a few tokens, drawn at random from those whose covariance is between two bounds."""

    Params = ClipCovParams
    params: ClipCovParams
    advantage_formula = "as `grpo`"
    loss_formula = (
        "as `grpo`, or 0 on a `fraction` of the tokens, drawn among those with `low` < covariance < `high`"
    )
    further_needs = ("policy_log_probs", "marks")

    def marks(
        self, groups: Sequence[Group], advantages: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """Returns 1 on the tokens that are left out.

        The draw depends on the step's prompts alone, so that it is the same after a resume.
        """
        covariances, trained = token_covariances(groups, advantages)
        candidates = np.flatnonzero(
            trained & (covariances > self.params.low) & (covariances < self.params.high)
        )
        count = max(int(self.params.fraction * trained.sum()), 1)
        seed = [0, *(group.prompt.index for group in groups)]
        chosen = np.random.default_rng(seed).permutation(candidates)[:count]
        return mark_tokens(chosen, advantages)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss, and 0 on the tokens that are left out."""
        assert inputs.marks is not None, "needs.marks was declared"
        pg_loss, clipped = clip_terms(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
        outputs = objective(self.params, inputs, pg_loss * (1 - inputs.marks), clipped)
        return LossOutputs(outputs.loss, {**outputs.metrics, "cov_frac": inputs.marks})
