r"""Grades with the math-verify library (https://github.com/huggingface/Math-Verify), faster where it can."""

from functools import lru_cache
from typing import Any

from pydantic import Field

from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.rewards.math_grading.quick_verdict import quick_verdict
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section

LONGEST_TEXT = 20_000
"""Characters at the end of a response in which the library looks for an answer."""
LONGEST_QUICK = 400
_REMEMBERED = 20_000


class MathVerifyParams(Section):
    """How the library compares."""

    float_rounding: int = Field(default=6, ge=0)
    """Decimals to which floating-point numbers are compared."""
    strict: bool = True
    """Variables keep their names, and sets are no tuples; false is the library's lenient comparison."""


class MathVerify(NeedsLabel):
    """1 where math-verify finds the label's value in the response, else 0, as the library judges.

    Answers in a box that are plain numbers, expressions, tuples, sets or matrices are compared without it,
    and what it made of a text is remembered: a group shares its label and, often, answers. It looks at the
    last 20,000 characters of a response without a single box. Its own time-outs are off: `scoring.timeout`
    ends what hangs. A label without `$` or a box is read as LaTeX.
    """

    Params = MathVerifyParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: MathVerifyParams) -> None:
        import math_verify  # a second, paid before the first sample's clock runs

        self.params = params
        self._library = math_verify
        self._parsed = lru_cache(_REMEMBERED)(self._parse)
        self._judged = lru_cache(_REMEMBERED)(self._judge)
        self._verified(self._parse(r"$\frac{x^2}{3}$"), r"\sqrt{2}")  # its first parse takes half a second

    def score(self, sample: Sample) -> float:
        """1 or 0."""
        label = sample.prompt.row.label
        if label is None or not str(label).strip():
            return 0.0
        text = sample.text
        boxed = last_boxed(text) if text.count("\\boxed") == 1 else None
        if boxed is not None:
            return float(self._judged(boxed, str(label)))
        return float(self._verified(self._parse(text[-LONGEST_TEXT:]), str(label)))

    def _judge(self, boxed: str, label: str) -> bool:
        if len(boxed) <= LONGEST_QUICK and (verdict := self._quick(boxed, label)) is not None:
            return verdict
        return self._verified(self._parsed(f"$\\boxed{{{boxed}}}$"), label)

    def _quick(self, boxed: str, label: str) -> bool | None:
        """The certain verdict, if the settings are those it is certain for."""
        if self.params != MathVerifyParams():
            return None
        inner = last_boxed(label)
        return quick_verdict(boxed, label.strip().strip("$") if inner is None else inner)

    def _verified(self, answer: Any, label: str) -> bool:
        gold = self._parsed(label if "$" in label or "\\boxed" in label else f"${label}$")
        return bool(
            self._library.verify(
                gold,
                answer,
                float_rounding=self.params.float_rounding,
                strict=self.params.strict,
                timeout_seconds=None,
            )
        )

    def _parse(self, text: str) -> Any:
        return self._library.parse(text, parsing_timeout=None)
