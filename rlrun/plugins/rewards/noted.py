"""Uses a number that the rollout noted as the reward, such as the verdict of an environment."""

from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class NotedParams(Section):
    """Which number is used."""

    note: str = "reward"
    """Name of the number in the sample's `info`, as an agent returned it or a rollout noted it."""


class Noted:
    """Scores a sample with a number in its `info`. A sample without the number fails."""

    Params = NotedParams
    api_version = 1

    def __init__(self, params: NotedParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns the number. Raises ValueError if the rollout did not note it."""
        number = sample.info.get(self.params.note)
        if not isinstance(number, int | float):
            names = ", ".join(sorted(sample.info)) or "nothing"
            raise ValueError(f"{self.params.note!r} is {number!r}, not a number; the rollout noted: {names}")
        return float(number)
