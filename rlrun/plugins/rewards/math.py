r"""Grades the last `\boxed{...}` of a response against the label, as mathematics."""

from typing import Any

from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.rewards.math_grading.equivalence import same_answer
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class MathParams(Section):
    """Whose answer counts."""

    cut_thinking: bool = False
    """Look for the answer only after the last `</think>`."""


class Math(NeedsLabel):
    r"""1 where the last box holds the label's value, whatever its spelling; 0 otherwise and without a box.

    Equal are texts that normalise to the same, whatever their case, lists and pairs whose elements are equal
    in order, sets in any order, matrices with equal cells, and expressions with the same value: `\frac12` and
    0.5, `(x+1)(x-1)` and `x^2-1`, `2^{10}` and 1024, `5 million` and 5000000, `\pm 3` and `3, -3`. A
    percentage is its number and also a hundredth of it: 25% is 25 and 0.25. A number and its rounding are not
    equal: `\pi` and 3.14159. An answer has to be worked out: `40+2` is not 42, `2/4` is not `1/2`. Units
    behind it don't count. The label may be boxed.
    """

    Params = MathParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: MathParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """1 or 0."""
        text = sample.text
        if self.params.cut_thinking:
            text = text.rpartition("</think>")[2]
        return float(boxed_answer_is(text, sample.prompt.row.label))


def boxed_answer_is(text: str, label: Any) -> bool:
    """Whether the last box in `text` holds the label."""
    answer = last_boxed(text)
    expected = str(label) if label is not None else ""
    boxed_label = last_boxed(expected)
    return answer is not None and same_answer(answer, expected if boxed_label is None else boxed_label)
