"""What the rollout itself noted: the reward of an environment that judges."""

from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class NotedParams(Section):
    """Where it stands."""

    note: str = "reward"
    """Name of the number in the sample's `info`: what an agent returned, or a rollout left."""


class Noted:
    """A number that the rollout left on the sample; a sample without it is that sample's error."""

    Params = NotedParams
    api_version = 1

    def __init__(self, params: NotedParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """The number as it is. ValueError where there is none."""
        found = sample.info.get(self.params.note)
        if not isinstance(found, int | float):
            names = ", ".join(sorted(sample.info)) or "nothing"
            raise ValueError(f"{self.params.note!r} is {found!r}, not a number; the rollout noted: {names}")
        return float(found)
