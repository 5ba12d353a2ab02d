"""A*-PO: regression on the optimal advantage (https://arxiv.org/abs/2505.20686).

The optimal value of a prompt is estimated before training, from rewards of samples of the reference policy,
which the rows of the data contain. Training then needs a single sample per prompt.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rlrun.plugins.algorithms.advantages import comparable_rewards, spread_over_tokens
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs, Row


class AStarPOParams(BaseModel):
    """The temperatures of A*-PO, and where the rewards of the reference are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rewards_key: str = "reference_rewards"
    """Key of a row's metadata with a list of rewards, one of each sample of the reference policy."""
    value_beta: float = Field(default=0.5, gt=0)
    """Temperature of the optimal value: near 0 it is the best of these rewards, for a large one their mean.
    The paper calls it beta1."""
    beta: float = Field(default=1e-3, gt=0)
    """How strongly the policy is kept near the reference. The paper calls it beta2."""


class AStarPO:
    """Fits beta · log(policy / reference) of a sample to its reward minus the optimal value of its prompt."""

    Params = AStarPOParams
    api_version = 1
    needs = Needs(reference=True, old_log_probs=False)
    advantage_formula = "r − value_beta · log mean exp(reward of the reference / value_beta)"
    loss_formula = "(beta · Σ(new − reference) of the sample − A)²"

    def __init__(self, params: AStarPOParams) -> None:
        self.params = params

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns reward - optimal value for each sample, the same value on each of its tokens.

        Raises ValueError for a row without rewards of the reference.
        """
        values = [self.optimal_value(group.prompt.row) for group in groups]
        return [
            array.astype(np.float32)
            for group, value in zip(groups, values, strict=True)
            for array in spread_over_tokens(group, comparable_rewards(group)[0] - value)
        ]

    def optimal_value(self, row: Row) -> float:
        """Returns value_beta · log mean exp(reward / value_beta) over the rewards of the reference."""
        rewards: Any = row.metadata.get(self.params.rewards_key)
        if not isinstance(rewards, Sequence) or not rewards:
            raise ValueError(
                f"row {row.id} has no list of rewards in metadata.{self.params.rewards_key}: a_star_po needs "
                "rewards of samples of the reference policy; add them to the rows, and name the column in "
                "data.metadata_columns"
            )
        scaled = np.array(rewards, np.float64) / self.params.value_beta
        return float(self.params.value_beta * (np.logaddexp.reduce(scaled) - np.log(len(scaled))))

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns (beta · log(policy / reference) - advantage)² of each sample, on each of its tokens."""
        assert inputs.reference_log_probs is not None, "needs.reference was declared"
        change = inputs.sample_sum((inputs.log_probs - inputs.reference_log_probs) * inputs.mask)
        fitted = self.params.beta * change[inputs.sample]
        loss = (fitted - inputs.advantages) ** 2
        metrics = {"a_star_po_loss": loss, "advantages": inputs.advantages, "implicit_reward": fitted}
        return LossOutputs(loss, {name: values.detach() for name, values in metrics.items()})
