"""Drops groups in which too many responses ran into the token limit."""

from pydantic import Field

from rlrun.plugins.thresholds import exceeds
from rlrun.plugins.types import Drop, Group, Status
from rlrun.specs.sections.section import Section


class TruncatedParams(Section):
    """How much truncation is too much."""

    max_share: float = Field(default=0.0, ge=0, lt=1)
    """Largest share of the group's samples that may be truncated; 0 drops a group with any."""


class Truncated:
    """Keeps a group when no more than `max_share` of its samples are truncated."""

    Params = TruncatedParams
    api_version = 1

    def __init__(self, params: TruncatedParams) -> None:
        self.params = params

    def __call__(self, group: Group) -> Drop | None:
        """Reason: `truncated`."""
        truncated = sum(sample.status is Status.TRUNCATED for sample in group.samples)
        most = self.params.max_share * len(group.samples)
        return Drop("truncated") if exceeds(truncated, most) else None
