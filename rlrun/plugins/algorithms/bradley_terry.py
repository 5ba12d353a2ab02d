"""The Bradley-Terry loss, which trains a reward model from preferences (https://arxiv.org/abs/2203.02155)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlrun.plugins.algorithms.pairs import PairLoss, negative_log_sigmoid, of_pairs, pair_outputs, token_means
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Row
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np

MARGIN = "margin"
"""The key of a row's metadata that says by how much its preferred response is better."""


class BradleyTerryParams(Section):
    """The parameters of the Bradley-Terry loss."""

    center: float = Field(default=0.0, ge=0)
    """Weight of the squared sum of a pair's scores, which keeps scores near 0: pairs fix differences alone
    (https://arxiv.org/abs/2312.09244). TRL's `center_rewards_coefficient`."""
    use_margin: bool = False
    """Preferred responses must win by the `margin` of their row's metadata, as Llama 2's reward models learn
    (https://arxiv.org/abs/2307.09288)."""


class BradleyTerry(PairLoss):
    """Trains a reward model on rows that contain a preferred and a rejected response.

    The model is that of `[model]`, with a head that gives one score in place of the vocabulary's. Exports are
    folders of transformers' `AutoModelForSequenceClassification`, which the reward `reward_model` reads.
    """

    Params = BradleyTerryParams
    needs = Needs(rollout=False, rewards=False, old_log_probs=False, pairs=True, scores=True)
    advantage_formula = "the margin that the preferred response must win by"
    loss_formula = "−log σ(s₊ − s₋ − margin) + center·(s₊ + s₋)² of the pair’s scores s"

    def __init__(self, params: BradleyTerryParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns the margin of its row on every token. Raises ValueError for a row without one."""
        return [
            np.full(len(sample.tokens), self._margin(group.prompt.row), np.float32)
            for group in groups
            for sample in group.samples
        ]

    def _margin(self, row: Row) -> float:
        if not self.params.use_margin:
            return 0.0
        margin = row.metadata.get(MARGIN)
        if not isinstance(margin, int | float) or isinstance(margin, bool) or not math.isfinite(margin):
            raise ValueError(
                f"row {row.id}: the {MARGIN} of its metadata is {margin!r}, and algorithm.use_margin needs a "
                "number"
            )
        return float(margin)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns the loss of each pair, one number on each of its tokens."""
        assert inputs.scores is not None, "needs.scores was declared"
        preferred, rejected = of_pairs(inputs.scores)
        margin, _ = of_pairs(token_means(inputs, inputs.advantages))
        difference = preferred - rejected
        loss = negative_log_sigmoid(difference - margin) + self.params.center * (preferred + rejected) ** 2
        wins = (difference > 0).to(loss.dtype)
        metrics = {"rm_loss": loss, "preferred_frac": wins, "reward_margin": difference}
        return pair_outputs(inputs, loss, metrics)
