r"""Grades with the math-verify library (https://github.com/huggingface/Math-Verify), and without it where
possible.
"""

from functools import lru_cache
from typing import Any

from pydantic import Field

from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.rewards.math_grading.quick_verdict import quick_verdict
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section

MAX_TEXT_LENGTH = 20_000
"""Number of characters at the end of a response in which the library searches for an answer."""
MAX_QUICK_LENGTH = 400
_REMEMBERED = 20_000


class MathVerifyParams(Section):
    """How the library compares."""

    float_rounding: int = Field(default=6, ge=0)
    """Number of decimals to which floating-point numbers are compared."""
    strict: bool = True
    """Variables must have the same names, and sets differ from tuples; false is the library's lenient
    comparison."""


class MathVerify(NeedsLabel):
    """Scores 1 if math-verify finds the label's value in the response, else 0.

    Answers in a box that are plain numbers, expressions, tuples, sets or matrices are compared without the
    library. Parsed texts and verdicts are cached, because the samples of a group share their label and often
    their answers. In a response that does not have exactly one box, the library searches the last 20,000
    characters. The library's time-outs are switched off; `scoring.timeout` ends a comparison that hangs. A
    label without `$` or a box is read as LaTeX.
    """

    Params = MathVerifyParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: MathVerifyParams) -> None:
        import math_verify  # takes a second; imported here so that the first sample does not pay

        self.params = params
        self._library = math_verify
        self._parsed = lru_cache(_REMEMBERED)(self._parse)
        self._judged = lru_cache(_REMEMBERED)(self._judge)
        self._verified(self._parse(r"$\frac{x^2}{3}$"), r"\sqrt{2}")  # the first parse takes half a second

    def score(self, sample: Sample) -> float:
        """Returns 1 for the right answer and 0 for a wrong or missing one."""
        label = sample.prompt.row.label
        if label is None or not str(label).strip():
            return 0.0
        text = sample.text
        boxed = last_boxed(text) if text.count("\\boxed") == 1 else None
        if boxed is not None:
            return float(self._judged(boxed, str(label)))
        return float(self._verified(self._parse(text[-MAX_TEXT_LENGTH:]), str(label)))

    def _judge(self, boxed: str, label: str) -> bool:
        if len(boxed) <= MAX_QUICK_LENGTH and (verdict := self._quick(boxed, label)) is not None:
            return verdict
        return self._verified(self._parsed(f"$\\boxed{{{boxed}}}$"), label)

    def _quick(self, boxed: str, label: str) -> bool | None:
        """Returns the quick verdict, which holds for the default settings only; None if it is not certain."""
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
