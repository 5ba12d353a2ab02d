"""Drops groups whose samples all have the same reward: a group-relative algorithm learns nothing from them.

This is the dynamic sampling of DAPO (https://arxiv.org/abs/2503.14476).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.plugins.types import Drop, Group
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
else:
    from rlrun.plugins import lazy_numpy as np

MIN_STD = 1e-6


class NonzeroStdParams(Section):
    """What happens when too few groups are left."""

    keep_when_short: bool = False
    """Use dropped groups after all when the step would otherwise end with too few groups."""


class NonzeroStd:
    """Keeps a group if the standard deviation of its rewards is above 1e-6; drops a group of one."""

    Params = NonzeroStdParams
    api_version = 1

    def __init__(self, params: NonzeroStdParams) -> None:
        self.keep_when_short = params.keep_when_short

    def __call__(self, group: Group) -> Drop | None:
        """Returns the verdict; its reason names the reward that all samples share: `all_0`, `all_1`, …"""
        rewards = np.array([sample.reward for sample in group.samples], dtype=np.float64)
        has_several_executions = len({sample.execution for sample in group.samples}) > 1
        if has_several_executions and rewards.std(ddof=1) > MIN_STD:
            return None
        return Drop(f"all_{rewards[0]:.3g}" if len(rewards) else "empty")
