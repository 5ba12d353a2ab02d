"""The bases of algorithms that share GRPO's advantages or its loss; GRPO has the first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import model_validator

from rlrun.plugins.algorithms.adaptive_entropy import FollowsEntropy
from rlrun.plugins.algorithms.advantages import Comparison, group_relative, spread_over_tokens
from rlrun.plugins.algorithms.objective import ClipParams, ObjectiveParams, clipped_objective, needs_of
from rlrun.plugins.algorithms.shaping import shape_advantages
from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlrun.plugins.algorithms.advantages import Scores


class ComparedParams(Comparison, ObjectiveParams):
    """How rewards become advantages, and the shared terms of the loss."""


class OneRatio(Comparison):
    """A base for parameters of losses with one ratio per sample, whose turns share one gradient."""

    @model_validator(mode="after")
    def _no_credit_of_turns(self) -> Self:
        if self.turn_rewards != "episode":
            raise ValueError(
                f'turn_rewards = "{self.turn_rewards}" needs a ratio for each token, and this loss has one '
                'for all turns of a sample: remove it, or set type = "grpo" or "gspo_token"'
            )
        return self


class GroupCompared(FollowsEntropy):
    """Compares the rewards of a group as GRPO does. A subclass adds `Params` and `loss`."""

    api_version = 1
    params: ComparedParams
    advantage_formula = "as `grpo`"
    further_needs: ClassVar[tuple[str, ...]] = ()
    """Fields of `Needs` that the loss requires whatever terms are active."""

    def __init__(self, params: ComparedParams) -> None:
        self.params = params
        further_needs = dict.fromkeys(self.further_needs, True)
        self.needs: Needs = needs_of(params, group_relative=params.subtract_mean, **further_needs)

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns (reward - group mean) / group std for each sample, the same value on each of its tokens, or
        on each token of a turn.
        """
        params = self.params
        differences = group_relative(
            groups,
            params.normalize_std,
            params.subtract_mean,
            params.turn_rewards,
            divisor=params.std_divisor,
            epsilon=params.std_epsilon,
        )
        return shape_advantages(params, groups, differences)


class ClippedGroup(FollowsEntropy, ABC):
    """Trains with PPO's clipped loss on one advantage per sample, which depends on its group alone.

    A subclass adds `scores_of`.
    """

    Params = ClipParams
    params: ClipParams
    api_version = 1
    loss_formula = "as `grpo`"

    def __init__(self, params: ClipParams) -> None:
        self.params = params
        self.needs: Needs = needs_of(params, group_relative=True)

    @abstractmethod
    def scores_of(self, group: Group) -> Scores:
        """Returns the advantages of the samples that are compared, in order."""

    def advantages(self, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
        """Returns the same value on each token of a sample; 0 on samples that are not compared."""
        spread = [array for group in groups for array in spread_over_tokens(group, self.scores_of(group))]
        return shape_advantages(self.params, groups, spread)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """Returns PPO's clipped loss of each token, from the ratio of the new to the old policy."""
        return clipped_objective(self.params, inputs, inputs.log_probs - inputs.old_log_probs)
