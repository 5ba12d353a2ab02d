"""A reward that knows nothing: for trying a set-up, and as the control that a real reward must beat."""

import random

from pydantic import Field

from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class RandomParams(Section):
    """How the dice are loaded."""

    probability: float = Field(default=0.5, ge=0, le=1)
    """Share of samples that score 1."""
    seed: int = 0
    """Another seed, other scores."""


class Random:
    """1 or 0 by chance; the same for the same sample id and text."""

    Params = RandomParams
    api_version = 1

    def __init__(self, params: RandomParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """1 or 0."""
        dice = random.Random(f"{self.params.seed} {sample.id} {sample.text}")
        return float(dice.random() < self.params.probability)
