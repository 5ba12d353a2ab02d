"""A reward for rlrun that measures how close a response is to a given number of words."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from rlrun.plugins.types import Sample


class WordCountParams(BaseModel):
    """The reward's keys in a spec, next to `type = "wordcount"`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    target: int = Field(ge=1)
    """Number of words that scores 1."""
    tolerance: int = Field(default=0, ge=0)
    """How many words more or fewer still score 1."""


class WordCount:
    """Scores 1 within `tolerance` of `target` words; from there the score falls to 0 at no words, or at twice
    as many.
    """

    Params = WordCountParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"target": 4}

    def __init__(self, params: WordCountParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns the score, from 0 to 1."""
        excess = abs(len(sample.text.split()) - self.params.target) - self.params.tolerance
        return min(max(1 - excess / self.params.target, 0.0), 1.0)
