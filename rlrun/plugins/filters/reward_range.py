"""Drops groups whose mean reward is outside a range, because they are too easy or too hard for the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from rlrun.plugins.thresholds import exceeds
from rlrun.plugins.types import Drop, Group, last_samples
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
else:
    from rlrun.plugins import lazy_numpy as np


class RewardRangeParams(Section):
    """The range of mean rewards that is kept, including both ends."""

    low: float | None = None
    """Smallest mean reward. None: no limit."""
    high: float | None = None
    """Largest mean reward. None: no limit."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low:g}) is above high ({self.high:g})")
        if self.low is None and self.high is None:
            raise ValueError("every group would be kept: give low or high")
        return self


class RewardRange:
    """Keeps a group if low <= mean reward <= high. Each execution counts once, by its last sample."""

    Params = RewardRangeParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"low": 0.5}

    def __init__(self, params: RewardRangeParams) -> None:
        self.params = params

    def __call__(self, group: Group) -> Drop | None:
        """Returns the verdict with the reason `low` or `high`."""
        mean = float(np.mean([sample.reward for sample in last_samples(group.samples)]))
        if self.params.low is not None and exceeds(self.params.low, mean):
            return Drop("low")
        if self.params.high is not None and exceeds(mean, self.params.high):
            return Drop("high")
        return None
