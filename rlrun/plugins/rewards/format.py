"""Whether a response has the form that was asked for."""

import re

from rlrun.plugins.rewards.extraction import Pattern
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class FormatParams(Section):
    """What the response must look like."""

    pattern: Pattern
    """Regular expression for the whole response, white space at either end aside; `.` matches line ends too.

    `"<think>.*</think>\\\\s*<answer>.*</answer>"`"""


class Format:
    """1 where the pattern matches the whole response, else 0."""

    Params = FormatParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: FormatParams) -> None:
        self._pattern = re.compile(params.pattern, re.DOTALL)

    def score(self, sample: Sample) -> float:
        """1 or 0."""
        return float(self._pattern.fullmatch(sample.text.strip()) is not None)
