"""Supervised fine-tuning: the mean negative log-likelihood of the demonstrations' response tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np


class SFTParams(Section):
    """Supervised fine-tuning has no parameters of its own."""


class SFT:
    """No rollout, no reward: rows carry demonstrations, and the loss is -log-prob of their tokens."""

    Params = SFTParams
    api_version = 1
    needs = Needs(rollout=False, old_log_probs=False)

    def __init__(self, params: SFTParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Zeros: demonstrations are not compared."""
        return [
            np.zeros(len(sample.tokens), dtype=np.float32) for group in groups for sample in group.samples
        ]

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """-log-prob of each token."""
        return LossOutputs(loss=-inputs.log_probs, metrics={"entropy": inputs.entropy.detach()})
