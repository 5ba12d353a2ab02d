"""Compares the answer with the label, character by character or as words."""

from typing import Any, Self

from pydantic import model_validator

from rlrun.plugins.rewards.extraction import Pattern, last_match
from rlrun.plugins.rewards.f1 import words
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Row, Sample
from rlrun.specs.sections.section import Section


class ExactMatchParams(Section):
    """Which part of the response is the answer, and how it is compared."""

    answer_pattern: Pattern | None = None
    """Regular expression; the first group of its last match is the answer. None: the whole response."""
    ignore_case: bool = False
    """Ignore the difference between upper and lower case."""
    words: bool = False
    """Compare words, as open questions are graded: case, punctuation and articles do not count, and the label
    may be a list of right answers."""

    @model_validator(mode="after")
    def _words_have_no_case(self) -> Self:
        if self.words and "ignore_case" in self.model_fields_set:
            raise ValueError("ignore_case has no effect with words = true: delete it")
        return self


class ExactMatch(NeedsLabel):
    """Scores 1 if answer and label are the same text, ignoring white space at both ends; 0 otherwise."""

    Params = ExactMatchParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: ExactMatchParams) -> None:
        self.params = params

    @classmethod
    def check_row(cls, params: ExactMatchParams, row: Row) -> None:
        """Raises ValueError if the row has no label that an answer could equal."""
        may_be_list = params.words and isinstance(row.label, list)
        if not may_be_list:
            super().check_row(params, row)
        labels = row.label if may_be_list else [row.label]
        if params.words and not any(words(str(label)) for label in labels):
            raise ValueError(
                f"compares words besides articles, and the row's label {row.label!r:.60} has none: delete "
                "words = true"
            )

    def score(self, sample: Sample) -> float:
        """Returns 1 for the right answer and 0 for a wrong or missing one."""
        answer = last_match(sample.text, self.params.answer_pattern)
        if answer is None:
            return 0.0
        label: Any = sample.prompt.row.label
        if self.params.words:
            labels = label if isinstance(label, list) else [label]
            found = words(answer)
            return float(bool(found) and any(found == words(str(each)) for each in labels))
        label = str(label).strip()
        if self.params.ignore_case:
            answer, label = answer.casefold(), label.casefold()
        return float(answer == label)
