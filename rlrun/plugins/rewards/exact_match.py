"""1 where the answer is the label, character by character."""

from rlrun.plugins.rewards.extraction import Pattern, last_match
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class ExactMatchParams(Section):
    """What counts as the answer, and what as the same."""

    answer_pattern: Pattern | None = None
    """Regular expression; the first group of its last match is the answer. None: the whole response."""
    ignore_case: bool = False
    """Upper and lower case are the same."""


class ExactMatch(NeedsLabel):
    """Compares the answer with the label as text, without white space at either end; no answer scores 0."""

    Params = ExactMatchParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: ExactMatchParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """1 or 0."""
        answer = last_match(sample.text, self.params.answer_pattern)
        if answer is None:
            return 0.0
        label = str(sample.prompt.row.label).strip()
        if self.params.ignore_case:
            answer, label = answer.casefold(), label.casefold()
        return float(answer == label)
