"""Compares the answer with the label, character by character."""

from rlrun.plugins.rewards.extraction import Pattern, last_match
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class ExactMatchParams(Section):
    """Which part of the response is the answer, and how it is compared."""

    answer_pattern: Pattern | None = None
    """Regular expression; the first group of its last match is the answer. None: the whole response."""
    ignore_case: bool = False
    """Ignore the difference between upper and lower case."""


class ExactMatch(NeedsLabel):
    """Scores 1 if answer and label are the same text, ignoring white space at both ends; 0 otherwise."""

    Params = ExactMatchParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: ExactMatchParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns 1 for the right answer and 0 for a wrong or missing one."""
        answer = last_match(sample.text, self.params.answer_pattern)
        if answer is None:
            return 0.0
        label = str(sample.prompt.row.label).strip()
        if self.params.ignore_case:
            answer, label = answer.casefold(), label.casefold()
        return float(answer == label)
