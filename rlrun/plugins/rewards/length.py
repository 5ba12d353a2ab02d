"""Penalises responses near the token limit: soft overlong punishment of DAPO (arXiv 2503.14476)."""

from typing import Self

from pydantic import Field, model_validator

from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class LengthParams(Section):
    """At which length the penalty begins, and at which it is full."""

    max_tokens: int = Field(ge=1)
    """Response tokens at which the penalty is -1; usually `rollout.max_response_tokens`."""
    buffer: int = Field(ge=1)
    """Number of tokens before `max_tokens` over which the penalty grows from 0."""

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.buffer > self.max_tokens:
            raise ValueError(f"buffer ({self.buffer}) is larger than max_tokens ({self.max_tokens})")
        return self


class Length:
    """Scores 0 up to max_tokens - buffer tokens, then falls linearly to -1 at max_tokens and beyond."""

    Params = LengthParams
    api_version = 1
    reads_tokens = True

    def __init__(self, params: LengthParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns the penalty, from -1 to 0."""
        excess = len(sample.tokens) - (self.params.max_tokens - self.params.buffer)
        return -min(max(excess / self.params.buffer, 0.0), 1.0)
