"""Checks whether a response has the required form."""

import re

from rlrun.plugins.rewards.extraction import Pattern
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class FormatParams(Section):
    """The form that the response must have."""

    pattern: Pattern
    """Regular expression for the whole response, ignoring white space at both ends; `.` also matches line
    ends.

    Example: `"<think>.*</think>\\\\s*<answer>.*</answer>"`"""


class Format:
    """Scores 1 if the pattern matches the whole response, else 0."""

    Params = FormatParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: FormatParams) -> None:
        self._pattern = re.compile(params.pattern, re.DOTALL)

    def score(self, sample: Sample) -> float:
        """Returns 1 if the response has the form, else 0."""
        return float(self._pattern.fullmatch(sample.text.strip()) is not None)
