r"""Grades the last `\boxed{...}` of a response against the row's label, as mathematics.

    response: "... so the answer is \boxed{\frac12}."
    box:      "\frac12"
    label:    "0.5"                                       -> 1.0

`extraction.py` finds the box, and `math_grading/equivalence.py` compares its content with the label.
"""

from typing import Any

from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.rewards.math_grading.equivalence import same_answer
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section


class MathParams(Section):
    """Which part of the response is searched for the answer."""

    cut_thinking: bool = False
    """Look for the answer only after the last `</think>`."""


class Math(NeedsLabel):
    r"""Scores 1 if the last box holds the label's value in any notation; 0 otherwise, or without a box.

    Two answers are equal if they are

    - texts that normalise to the same text, ignoring case,
    - lists or pairs whose elements are equal in order, or sets with equal elements in any order,
    - matrices with equal cells,
    - expressions with the same value: `\frac12` and 0.5, `(x+1)(x-1)` and `x^2-1`, `2^{10}` and 1024,
      `5 million` and 5000000, `\pm 3` and `3, -3`.

    A percentage equals both its number and a hundredth of it: 25% is 25 and 0.25. A number and its rounding
    are not equal: `\pi` and 3.14159. A unit after the answer is ignored. The label may be boxed.

    An answer has to be worked out: if the label is a number, so is the answer, or a fraction in lowest terms.
    `40+2` is not 42, `1.25+1.25` is not 2.5, and `2/4` is neither `1/2` nor 0.5; `5/2` is 2.5, and `2^{10}`
    is 1024.

    Letters alone are a word, as `no` and `even` are, and not the product of its letters. Two letters without
    e, i and o are a product unless they are a common word: `ab` is `ba`, but `no` is not `on`.

    A name before an equals sign is dropped, also that of a function: `x=5` is 5, and `f(x)=x` is `x`. Here,
    math-verify agrees; slime keeps `f(x)=` and scores 0.
    """

    Params = MathParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: MathParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns 1 for the right answer and 0 for a wrong or missing one."""
        text = sample.text
        if self.params.cut_thinking:
            text = text.rpartition("</think>")[2]
        return float(boxed_answer_is(text, sample.prompt.row.label))


def boxed_answer_is(text: str, label: Any) -> bool:
    """Returns whether the last box in `text` holds the same answer as the label."""
    answer = last_boxed(text)
    if answer is None:
        return False
    label_text = str(label) if label is not None else ""
    boxed_label = last_boxed(label_text)
    return same_answer(answer, label_text if boxed_label is None else boxed_label)
