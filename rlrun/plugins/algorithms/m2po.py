"""M2PO: second-moment trust policy optimisation for stale samples (https://arxiv.org/abs/2510.01161).

The mask is AReaL's (`docs/en/algorithms/m2po.md`): it is chosen once per step, from the policy before the
update, over all trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.algorithms.correction import MAX_LOG_RATIO
from rlrun.plugins.algorithms.covariance import mark_tokens
from rlrun.plugins.algorithms.group_compared import ComparedParams, GroupCompared
from rlrun.plugins.algorithms.objective import objective
from rlrun.plugins.algorithms.shaping import trained_mask
from rlrun.plugins.types import Group, LossInputs, LossOutputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class M2POParams(ComparedParams):
    """GRPO's advantages, and how far the policy may be from the engines' samples."""

    threshold: float = Field(default=0.04, gt=0)
    """Largest mean of the squared log-ratios of trainer to engine over the tokens that are kept."""
    correction: None = None
    """The ratio is to the engine's probabilities already, so there is nothing to correct."""


class M2PO(GroupCompared):
    """Trains with the plain ratio to the engine, and leaves out the tokens with the largest ratios until the
    mean square of the others' logs is below a threshold.
    """

    Params = M2POParams
    params: M2POParams
    loss_formula = (
        "−(policy / engine)·A, or 0 on outliers: the mean (log ratio)² of the others is below `threshold`"
    )
    further_needs = ("policy_log_probs", "trainer_log_probs", "marks")

    def marks(
        self, groups: Sequence[Group], advantages: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """Returns 1 on the tokens that are left out. At least one token of a step is kept."""
        samples = [sample for group in groups for sample in group.samples]
        squares, trained = [], []
        for sample in samples:
            assert sample.policy_log_probs is not None, "needs.policy_log_probs"
            squares.append((sample.policy_log_probs.astype(np.float64) - sample.log_probs) ** 2)
            trained.append(trained_mask(sample))
        places = np.flatnonzero(np.concatenate(trained))
        values = np.concatenate(squares)
        ascending = places[np.argsort(values[places], kind="stable")]
        means = np.cumsum(values[ascending]) / np.arange(1, len(ascending) + 1)
        kept = max(int((means < self.params.threshold).sum()), 1)
        return mark_tokens(ascending[kept:], advantages)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -ratio to the engine · advantage, and 0 on the tokens that are left out."""
        assert inputs.marks is not None, "needs.marks was declared"
        ratio = (inputs.log_probs - inputs.rollout_log_probs).clamp(max=MAX_LOG_RATIO).exp()
        return objective(self.params, inputs, -ratio * inputs.advantages * (1 - inputs.marks), inputs.marks)
