"""Drops groups in which too many responses repeat themselves."""

from typing import Literal, Self

from pydantic import Field, model_validator

from rlrun.plugins.rewards.repetition import repeated_share
from rlrun.plugins.thresholds import reaches
from rlrun.plugins.types import Drop, Group, Mask
from rlrun.specs.sections.section import Section


class RepetitionParams(Section):
    """What counts as repetition, and how much of it is kept."""

    ngram: int = Field(default=20, ge=1)
    """Words in a row that count as repeated when they stand there again."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Share of a response's n-grams that must be repetitions for it to count as one that repeats itself."""
    single: Literal["drop", "mask"] | None = None
    """What becomes of a single response that repeats itself: it leaves the group, or is not trained on. None:
    nothing; groups are judged as a whole."""
    samples: float = Field(default=0.5, gt=0, le=1)
    """Share of a group's responses that must repeat themselves for the group to be dropped."""

    @model_validator(mode="after")
    def _read(self) -> Self:
        if self.single is not None and "samples" in self.model_fields_set:
            raise ValueError(f'samples has no effect: single = "{self.single}" does not judge groups')
        return self


class Repetition:
    """Drops a group where at least `samples` of the responses consist of repetitions for at least `share`, or
    drops or masks the responses that do.
    """

    Params = RepetitionParams
    api_version = 1

    def __init__(self, params: RepetitionParams) -> None:
        self.params = params

    def __call__(self, group: Group) -> Drop | Mask | None:
        """Reason: `repetition`."""
        params = self.params
        repeating = tuple(
            place
            for place, one in enumerate(group.samples)
            if repeated_share(one.text, params.ngram) >= params.share
        )
        if not repeating:
            return None
        if params.single is not None:
            return (Drop if params.single == "drop" else Mask)("repetition", repeating)
        least = params.samples * len(group.samples)
        return Drop("repetition") if reaches(len(repeating), least) else None
