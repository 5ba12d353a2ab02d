"""Online DPO: DPO on pairs of the policy's own responses (https://arxiv.org/abs/2402.04792)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.plugins.algorithms.advantages import comparable_rewards, spread_over_tokens
from rlrun.plugins.algorithms.dpo import DPO, DPOParams
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlrun.plugins.algorithms.advantages import Scores
else:
    from rlrun.plugins import lazy_numpy as np


class OnlineDPOParams(DPOParams):
    """The parameter of DPO."""


class OnlineDPO(DPO):
    """Trains on the responses of a group with the highest and the lowest reward, which any reward may give, a
    judge's or a reward model's too.
    """

    Params = OnlineDPOParams
    needs = Needs(old_log_probs=False, reference=True, pairs=True, group_relative=True)
    advantage_formula = "1 for the best and the worst response of a group; 0 if all rewards are equal"
    loss_formula = "as `dpo`, times A"

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns 1 on each token of a group whose rewards differ, else 0; 0 on samples without a reward."""
        return [array.astype(np.float32) for group in groups for array in _weights(group)]

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns DPO's loss of each pair, on each of its tokens; 0 for a pair of equal rewards."""
        outputs = super().loss(inputs)
        return LossOutputs(
            outputs.loss * inputs.advantages, {**outputs.metrics, "advantages": inputs.advantages}
        )


def _weights(group: Group) -> list[Scores]:
    rewards, _ = comparable_rewards(group)
    differ = len(rewards) > 0 and bool(np.ptp(rewards) > 0)
    return spread_over_tokens(group, np.full(len(rewards), float(differ)))
