"""Supervised fine-tuning: minimises the mean negative log-likelihood of demonstrated response tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import zero_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class SFTParams(Section):
    """Supervised fine-tuning has no parameters."""


class SFT:
    """Trains on rows that contain demonstrations; uses neither rollouts nor rewards."""

    Params = SFTParams
    api_version = 1
    needs = Needs(rollout=False, old_log_probs=False)
    advantage_formula = "none: rows contain demonstrations"
    loss_formula = "−new"

    def __init__(self, params: SFTParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns zeros, because demonstrations are not compared."""
        return zero_advantages(groups)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns -log-prob of each token."""
        return LossOutputs(loss=-inputs.log_probs, metrics={"entropy": inputs.entropy.detach()})
