"""One answer to the prompt."""

from collections.abc import Sequence

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.session import SessionGroup
from rlrun.specs.sections.section import Section


class SingleTurnParams(Section):
    """None."""


class SingleTurn:
    """The policy answers the prompt once; all samples of a prompt are asked for in one request."""

    Params = SingleTurnParams
    api_version = 1

    def __init__(self, params: SingleTurnParams) -> None:
        self.params = params

    async def run_group(self, group: SessionGroup) -> Sequence[Trajectory]:
        """A trajectory for each answer."""
        tokens = group.prompt.tokens
        trajectories = []
        for made in await group.generate(tokens):
            one = Trajectory(tokens)
            one.add(made)
            trajectories.append(one)
        return trajectories
