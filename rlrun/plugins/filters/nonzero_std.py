"""Drops groups whose samples all have the same reward: they teach a group-relative algorithm nothing.

Dynamic sampling of DAPO (https://arxiv.org/abs/2503.14476).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.plugins.types import Drop, Group
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
else:
    from rlrun.plugins import lazy_numpy as np

SMALLEST_STD = 1e-6


class NonzeroStdParams(Section):
    """What happens when nothing else is left."""

    keep_when_short: bool = False
    """Keep such a group after all when the step would otherwise end with too few groups."""


class NonzeroStd:
    """Keeps a group when its rewards' standard deviation is above 1e-6; a group of one is dropped."""

    Params = NonzeroStdParams
    api_version = 1

    def __init__(self, params: NonzeroStdParams) -> None:
        self.keep_when_short = params.keep_when_short

    def __call__(self, group: Group) -> Drop | None:
        """Names the reward that all samples share in the reason: `all_0`, `all_1`, …"""
        rewards = np.array([sample.reward for sample in group.samples], dtype=np.float64)
        compared = len({one.execution for one in group.samples}) > 1
        if compared and rewards.std(ddof=1) > SMALLEST_STD:
            return None
        return Drop(f"all_{rewards[0]:.3g}" if len(rewards) else "empty")
