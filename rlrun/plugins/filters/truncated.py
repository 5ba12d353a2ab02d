"""Drops groups in which too many responses reached the token limit."""

from pydantic import Field

from rlrun.plugins.thresholds import exceeds
from rlrun.plugins.types import Drop, Group, Status
from rlrun.specs.sections.section import Section


class TruncatedParams(Section):
    """How much truncation is allowed."""

    max_share: float = Field(default=0.0, ge=0, lt=1)
    """Largest share of a group's samples that may be truncated; 0 drops every group with a truncated
    sample."""


class Truncated:
    """Keeps a group if at most `max_share` of its samples are truncated."""

    Params = TruncatedParams
    api_version = 1

    def __init__(self, params: TruncatedParams) -> None:
        self.params = params

    def __call__(self, group: Group) -> Drop | None:
        """Returns the verdict with the reason `truncated`."""
        truncated = sum(sample.status is Status.TRUNCATED for sample in group.samples)
        limit = self.params.max_share * len(group.samples)
        return Drop("truncated") if exceeds(truncated, limit) else None
