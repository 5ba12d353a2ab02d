"""The order of buffered groups by the age of what made them."""

from collections.abc import Sequence

from rlrun.plugins.types import Buffered
from rlrun.specs.sections.section import Section


class AgeParams(Section):
    """None."""


class Fifo:
    """The oldest first: nothing waits until it is too old to be trained on."""

    Params = AgeParams
    api_version = 1

    def __init__(self, params: AgeParams) -> None:
        self.params = params

    def order(self, buffered: Sequence[Buffered], version: int) -> list[int]:
        """By the oldest weights in a group, then by prompt; gives nothing up."""
        return [one.index for one in sorted(buffered, key=lambda one: (one.oldest_version, one.index))]


class Freshest:
    """The newest first: batches are close to the policy, and what waits may grow too old."""

    Params = AgeParams
    api_version = 1

    def __init__(self, params: AgeParams) -> None:
        self.params = params

    def order(self, buffered: Sequence[Buffered], version: int) -> list[int]:
        """By the oldest weights in a group, newest first, then by prompt; gives nothing up."""
        return [one.index for one in sorted(buffered, key=lambda one: (-one.oldest_version, one.index))]
