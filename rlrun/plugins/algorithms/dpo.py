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
    """How far the policy may leave the reference for what is preferred."""

    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull back to the reference."""


class DPO:
    """No rollout, no reward: rows carry a preferred and a rejected response."""

    Params = DPOParams
    api_version = 1
    needs = Needs(rollout=False, rewards=False, old_log_probs=False, reference=True, pairs=True)

    def __init__(self, params: DPOParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Zeros: pairs are compared in the loss."""
        return [np.zeros(len(one.tokens), dtype=np.float32) for group in groups for one in group.samples]

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """-log sigmoid(margin), the pair's one number, on each of its tokens.

        margin = beta · ((preferred - reference) - (rejected - reference)), log-probs summed over responses.
        """
        assert inputs.reference_log_probs is not None, "needs.reference was declared"
        gains = inputs.sample_sum((inputs.log_probs - inputs.reference_log_probs) * inputs.mask)
        implicit = self.params.beta * gains.reshape(-1, 2)
        margin = implicit[:, 0] - implicit[:, 1]
        loss = margin.new_zeros(margin.shape).logaddexp(-margin)
        metrics = {"dpo_loss": loss, "preferred_frac": (margin > 0).to(loss.dtype), "reward_margin": margin}
        pair = inputs.sample // 2
        return LossOutputs(loss[pair], {name: values.detach()[pair] for name, values in metrics.items()})
