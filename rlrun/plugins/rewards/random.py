"""Random scores: for trying out a set-up, and as the control that a real reward must beat."""

import random

from pydantic import Field

from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class RandomParams(Section):
    """The distribution of the scores."""

    probability: float = Field(default=0.5, ge=0, le=1)
    """Share of samples that score 1."""
    seed: int = 0
    """Seed of the scores."""


class Random:
    """Scores 1 or 0 at random, always the same for the same sample id and text."""

    Params = RandomParams
    api_version = 1

    def __init__(self, params: RandomParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns 1 with the given probability, else 0."""
        dice = random.Random(f"{self.params.seed} {sample.id} {sample.text}")
        return float(dice.random() < self.params.probability)
