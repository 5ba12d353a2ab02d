"""Hierarchical GRPO, for rollouts in which one role makes the problems of another (prime-rl 0.8,
https://github.com/PrimeIntellect-ai/prime-rl).
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.algorithms.advantages import centre_rewards, is_compared
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.objective import ClipParams
from rlrun.plugins.types import Group


class HierarchicalGRPOParams(ClipParams):
    """The parameters of the clipped loss, and which samples are compared."""

    role_key: str = "player"
    """Key of a sample's `info` with its role. The rollout `environment` notes the player of a game with
    several players. Samples without the key share a role."""
    episode_roles: tuple[str | int, ...] = ("solver",)
    """Roles whose samples are compared within an execution, where all have the same problem. Those of other
    roles are compared with the group's samples of their role."""
    normalize_std: bool = False
    """Divide advantages by the standard deviation of the rewards that are compared; prime-rl does not."""


class HierarchicalGRPO(ClippedGroup):
    """Compares a solver's sample with other attempts at the same problem, and a proposer's with other
    proposals for the same prompt. A sample that has nothing to compare with has advantage 0.
    """

    Params = HierarchicalGRPOParams
    params: HierarchicalGRPOParams
    advantage_formula = "r − mean of its role: of the execution for `episode_roles`, else of the group"

    def scores_of(self, group: Group) -> NDArray[np.float64]:
        """Returns reward - mean of the samples that a sample is compared with."""
        samples = [sample for sample in group.samples if is_compared(sample)]
        compared: dict[tuple[object, str], list[int]] = defaultdict(list)
        for number, sample in enumerate(samples):
            role = sample.info.get(self.params.role_key)
            compared[role, sample.execution if role in self.params.episode_roles else ""].append(number)
        scores = np.zeros(len(samples))
        for numbers in compared.values():
            rewards = np.array([samples[number].reward for number in numbers], np.float64)
            scores[numbers] = centre_rewards(rewards, self.params.normalize_std)
        return scores
