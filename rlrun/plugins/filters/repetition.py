"""Drops groups in which too many responses repeat themselves, or drops or masks these responses."""

from typing import Literal, Self

from pydantic import Field, model_validator

from rlrun.plugins.rewards.repetition import repeated_share
from rlrun.plugins.thresholds import reaches
from rlrun.plugins.types import Drop, Group, Mask
from rlrun.specs.sections.section import Section


class RepetitionParams(Section):
    """What counts as repetition, and how much of it is allowed."""

    ngram: int = Field(default=20, ge=1)
    """How many consecutive words count as a repetition when they occur again."""
    share: float = Field(default=0.5, gt=0, le=1)
    """The share of a response's n-grams that must be repetitions for the response to count as repetitive."""
    single: Literal["drop", "mask"] | None = None
    """What happens to a single repetitive response: it is dropped from its group, or masked, which means not
    trained on. None: groups are judged as a whole."""
    samples: float = Field(default=0.5, gt=0, le=1)
    """The share of a group's responses that must be repetitive for the group to be dropped."""

    @model_validator(mode="after")
    def _read(self) -> Self:
        if self.single is not None and "samples" in self.model_fields_set:
            raise ValueError(f'samples has no effect: single = "{self.single}" does not judge groups')
        return self


class Repetition:
    """Judges responses as repetitive if at least `share` of their n-grams are repetitions.

    Drops a group if at least `samples` of its responses are repetitive, or drops or masks the repetitive
    responses.
    """

    Params = RepetitionParams
    api_version = 1

    def __init__(self, params: RepetitionParams) -> None:
        self.params = params

    def __call__(self, group: Group) -> Drop | Mask | None:
        """Returns the verdict with the reason `repetition`."""
        params = self.params
        repeating = tuple(
            index
            for index, sample in enumerate(group.samples)
            if repeated_share(sample.text, params.ngram) >= params.share
        )
        if not repeating:
            return None
        if params.single is not None:
            return (Drop if params.single == "drop" else Mask)("repetition", repeating)
        least = params.samples * len(group.samples)
        return Drop("repetition") if reaches(len(repeating), least) else None
