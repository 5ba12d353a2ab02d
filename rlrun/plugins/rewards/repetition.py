"""Penalises responses that repeat themselves, by their n-grams (https://arxiv.org/abs/2502.03373)."""

from pydantic import Field

from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class RepetitionParams(Section):
    """What counts as repetition, and what it costs."""

    ngram: int = Field(default=20, ge=1)
    """How many consecutive words count as a repetition when they occur again."""
    penalty: float = Field(default=1.0, gt=0)
    """The penalty of a response that consists of repetition only."""


class Repetition:
    """Scores from 0 (no repetition) to -penalty, in proportion to the share of n-grams that occurred before.

    Words are separated by white space and compared without case.
    """

    Params = RepetitionParams
    api_version = 1

    def __init__(self, params: RepetitionParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns minus the penalty times the repeated share."""
        return -self.params.penalty * repeated_share(sample.text, self.params.ngram)


def repeated_share(text: str, ngram: int) -> float:
    """Returns the share of a text's n-grams that occurred earlier in the text; 0 if it has fewer words than
    n.
    """
    words = text.lower().split()
    total = len(words) - ngram + 1
    if total <= 0:
        return 0.0
    distinct = len({tuple(words[start : start + ngram]) for start in range(total)})
    return (total - distinct) / total  # 1 - distinct / total rounds twice: 1 of 10 would be below 0.1
