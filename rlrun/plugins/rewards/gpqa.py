"""Grades multiple choice: the letter a response settles on (GPQA, https://arxiv.org/abs/2311.12022)."""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.types import Row, Sample
from rlrun.specs.sections.section import Section

LETTERS = "ABCDEFGHIJ"
_ANSWER_KEYS = ("correct_letter", "correct_answer", "answer_text")

_STATED = re.compile(
    # Possessive, since otherwise a run of white space can be divided among them in millions of ways.
    r"(?i:answer|option|choice)\s*+(?i:is\b|:|=)?+\s*+(?i:option|choice)?+\s*+[:=]?+[\s(\[*\"']*+"
    r"\b([A-Z]|[a-z](?!\s+\w))\b"
)
_LOWER_OPTION = re.compile(r"(?i:option|choice)\s+([a-z])\b")
_CALLED_CORRECT = re.compile(r"\b([A-Za-z])\b\W{0,3}\s+is\s+(?:the\s+)?(?:correct|right)\b")
_ALONE = re.compile(r"(?<![\w'])([B-HJ-Z]|[AI](?!\s+[a-z]))(?![\w'])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class GpqaParams(Section):
    """Which part of the response is the answer."""

    boxed: bool = False
    r"""Only what stands in the last `\\boxed{}`; without one the score is 0."""


class Gpqa:
    """1 for the right letter, or for the right choice's text where the response settles on no letter.

    The label is a letter, a choice's number from 0, or its text. The row's metadata may hold `choices` (a
    list, or a table by letter), `correct_letter`, which outranks the label, `valid_letters`, and the right
    text as `correct_answer` or `answer_text`. What follows `</think>` settles on the last letter that it
    names as the answer, else on the last that it calls correct, else on the last that stands alone.
    """

    Params = GpqaParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: GpqaParams) -> None:
        self.params = params

    @classmethod
    def check_row(cls, params: GpqaParams, row: Row) -> None:
        """Raises ValueError for a row that does not tell the right answer."""
        if row.label is None and not any(row.metadata.get(key) for key in _ANSWER_KEYS):
            raise ValueError(
                f"needs a label, or one of {', '.join(_ANSWER_KEYS)} in the row's metadata; set label_key"
            )

    def score(self, sample: Sample) -> float:
        """1 or 0."""
        text = last_boxed(sample.text) if self.params.boxed else sample.text.rpartition("</think>")[2]
        row = sample.prompt.row
        choices = _choices(row.metadata.get("choices"))
        letter, words = _expected(row.label, row.metadata, choices)
        named = [
            words,
            *(_plain(str(row.metadata.get(key) or "")) for key in ("correct_answer", "answer_text")),
        ]
        valid = row.metadata.get("valid_letters") or choices or [*LETTERS, *filter(None, [letter])]
        stated = _settled_on(text or "", {str(one).upper() for one in valid})
        if stated is not None and letter is not None:
            return float(stated == letter)
        said = f" {_plain(text or '')} "
        return float(any(one and f" {one} " in said for one in named))


def _choices(given: Any) -> dict[str, str]:
    """Choices by letter."""
    if isinstance(given, Mapping):
        return {str(letter).upper(): str(text) for letter, text in given.items()}
    if isinstance(given, Sequence) and not isinstance(given, str):
        return dict(zip(string.ascii_uppercase, map(str, given), strict=False))
    return {}


def _expected(label: Any, metadata: Mapping[str, Any], choices: Mapping[str, str]) -> tuple[str | None, str]:
    """The right letter, where one can be told, and the right choice's words."""
    letter = metadata.get("correct_letter")
    if letter is None and isinstance(label, int | float) and 0 <= label < len(string.ascii_uppercase):
        letter = string.ascii_uppercase[int(label)]
    if letter is None and isinstance(label, str) and len(label.strip()) == 1:
        letter = label.strip()
    if letter is None:
        letter = next((one for one, text in choices.items() if _plain(text) == _plain(str(label))), None)
    if letter is None:
        return None, _plain(str(label))
    return str(letter).upper(), _plain(choices.get(str(letter).upper(), ""))


def _settled_on(text: str, valid: set[str]) -> str | None:
    alone = text.strip(string.punctuation + string.whitespace)
    if len(alone) == 1 and alone.upper() in valid:
        return alone.upper()
    for pattern in (_STATED, _LOWER_OPTION, _CALLED_CORRECT, _ALONE):
        named = [letter.upper() for letter in pattern.findall(text) if letter.upper() in valid]
        if named:
            return str(named[-1])
    return None


def _plain(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())
