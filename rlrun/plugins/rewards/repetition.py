"""A penalty on responses that repeat themselves: n-gram repetition penalty (https://arxiv.org/abs/2502.03373)."""

from pydantic import Field

from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class RepetitionParams(Section):
    """What counts as repetition, and what it costs."""

    ngram: int = Field(default=20, ge=1)
    """Words in a row that count as repeated when they stand there again."""
    penalty: float = Field(default=1.0, gt=0)
    """What a response that only repeats itself loses."""


class Repetition:
    """From 0 for none to -penalty: the share of the response's n-grams that stood there before.

    Words are what white space divides, whatever their case.
    """

    Params = RepetitionParams
    api_version = 1

    def __init__(self, params: RepetitionParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Zero or less."""
        return -self.params.penalty * repeated_share(sample.text, self.params.ngram)


def repeated_share(text: str, ngram: int) -> float:
    """The share of a text's n-grams that stood there before; 0 for a text of fewer words."""
    words = text.lower().split()
    total = len(words) - ngram + 1
    if total <= 0:
        return 0.0
    distinct = len({tuple(words[at : at + ngram]) for at in range(total)})
    return (total - distinct) / total  # 1 - distinct / total would be rounded twice: 1 of 10 below 0.1
