"""Orders buffered groups by the age of the weights that generated them."""

from collections.abc import Sequence

from rlrun.plugins.types import Buffered
from rlrun.specs.sections.section import Section


class AgeParams(Section):
    """These strategies have no parameters."""


class Fifo:
    """Uses the oldest groups first, so that no group becomes too old to be trained on."""

    Params = AgeParams
    api_version = 1

    def __init__(self, params: AgeParams) -> None:
        self.params = params

    def order(self, buffered: Sequence[Buffered], version: int) -> list[int]:
        """Returns all groups, ordered by the oldest weights in a group, then by prompt."""
        return [
            group.index for group in sorted(buffered, key=lambda group: (group.oldest_version, group.index))
        ]


class Freshest:
    """Uses the newest groups first: batches are close to the policy, but waiting groups may grow too old."""

    Params = AgeParams
    api_version = 1

    def __init__(self, params: AgeParams) -> None:
        self.params = params

    def order(self, buffered: Sequence[Buffered], version: int) -> list[int]:
        """Returns all groups, ordered by the oldest weights in a group, newest first, then by prompt."""
        return [
            group.index for group in sorted(buffered, key=lambda group: (-group.oldest_version, group.index))
        ]
