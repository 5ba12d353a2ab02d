"""DPO: direct preference optimisation (https://arxiv.org/abs/2305.18290)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class DPOParams(Section):
    """The parameter of DPO."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is kept near the reference."""


class DPO:
    """Trains on rows that contain a preferred and a rejected response; uses neither rollouts nor rewards."""

    Params = DPOParams
    api_version = 1
    needs = Needs(rollout=False, rewards=False, old_log_probs=False, reference=True, pairs=True)
    advantage_formula = "none: rows contain a preferred and a rejected response"
    loss_formula = "−log σ(β · margin) of the pair"

    def __init__(self, params: DPOParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns zeros, because the loss compares the pairs."""
        return [
            np.zeros(len(sample.tokens), dtype=np.float32) for group in groups for sample in group.samples
        ]

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -log sigmoid(margin), one number for each pair, on each of the pair's tokens.

        margin = beta · ((preferred - reference) - (rejected - reference)), with log-probs summed over
        responses.
        """
        assert inputs.reference_log_probs is not None, "needs.reference was declared"
        gains = inputs.sample_sum((inputs.log_probs - inputs.reference_log_probs) * inputs.mask)
        implicit = self.params.beta * gains.reshape(-1, 2)
        margin = implicit[:, 0] - implicit[:, 1]
        loss = margin.new_zeros(margin.shape).logaddexp(-margin)
        metrics = {"dpo_loss": loss, "preferred_frac": (margin > 0).to(loss.dtype), "reward_margin": margin}
        pair = inputs.sample // 2
        return LossOutputs(loss[pair], {name: values.detach()[pair] for name, values in metrics.items()})
