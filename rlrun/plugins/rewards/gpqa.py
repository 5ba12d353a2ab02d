"""Grades multiple-choice answers by the letter that a response chooses (GPQA,
https://arxiv.org/abs/2311.12022).
"""

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
    # The quantifiers are possessive: otherwise a run of white space could be divided in millions of ways.
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
    r"""Grade only the content of the last `\\boxed{}`; without a box the score is 0."""


class Gpqa:
    """Scores 1 for the right letter, or for the text of the right choice if the response chooses no letter.

    The label is a letter, the number of a choice counted from 0, or a choice's text. The row's metadata may
    hold `choices` (a list, or a table by letter), `correct_letter`, which takes precedence over the label,
    `valid_letters`, and the right text as `correct_answer` or `answer_text`. In the text after `</think>`,
    the response chooses the last letter that it names as the answer, else the last that it calls correct,
    else the last that occurs alone.
    """

    Params = GpqaParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: GpqaParams) -> None:
        self.params = params

    @classmethod
    def check_row(cls, params: GpqaParams, row: Row) -> None:
        """Raises ValueError for a row that does not contain the right answer."""
        if row.label is None and not any(row.metadata.get(key) for key in _ANSWER_KEYS):
            raise ValueError(
                f"needs a label, or one of {', '.join(_ANSWER_KEYS)} in the row's metadata; set label_key"
            )

    def score(self, sample: Sample) -> float:
        """Returns 1 for the right answer and 0 for a wrong or missing one."""
        text = last_boxed(sample.text) if self.params.boxed else sample.text.rpartition("</think>")[2]
        row = sample.prompt.row
        choices = _choices(row.metadata.get("choices"))
        right_letter, right_words = _right_answer(row.label, row.metadata, choices)
        right_texts = [
            right_words,
            *(_plain_words(str(row.metadata.get(key) or "")) for key in ("correct_answer", "answer_text")),
        ]
        valid = row.metadata.get("valid_letters") or choices or [*LETTERS, *filter(None, [right_letter])]
        chosen_letter = _chosen_letter(text or "", {str(letter).upper() for letter in valid})
        if chosen_letter is not None and right_letter is not None:
            return float(chosen_letter == right_letter)
        response_words = f" {_plain_words(text or '')} "
        return float(any(right and f" {right} " in response_words for right in right_texts))


def _choices(choices: Any) -> dict[str, str]:
    """Returns the texts of the choices by letter."""
    if isinstance(choices, Mapping):
        return {str(letter).upper(): str(text) for letter, text in choices.items()}
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        return dict(zip(string.ascii_uppercase, map(str, choices), strict=False))
    return {}


def _right_answer(
    label: Any, metadata: Mapping[str, Any], choices: Mapping[str, str]
) -> tuple[str | None, str]:
    """Returns the right letter, or None if it is unknown, and the words of the right choice."""
    letter = metadata.get("correct_letter")
    if letter is None and isinstance(label, int | float) and 0 <= label < len(string.ascii_uppercase):
        letter = string.ascii_uppercase[int(label)]
    if letter is None and isinstance(label, str) and len(label.strip()) == 1:
        letter = label.strip()
    if letter is None:
        right_words = _plain_words(str(label))
        letter = next((key for key, text in choices.items() if _plain_words(text) == right_words), None)
    if letter is None:
        return None, _plain_words(str(label))
    return str(letter).upper(), _plain_words(choices.get(str(letter).upper(), ""))


def _chosen_letter(text: str, valid: set[str]) -> str | None:
    alone = text.strip(string.punctuation + string.whitespace)
    if len(alone) == 1 and alone.upper() in valid:
        return alone.upper()
    for pattern in (_STATED, _LOWER_OPTION, _CALLED_CORRECT, _ALONE):
        letters = [letter.upper() for letter in pattern.findall(text) if letter.upper() in valid]
        if letters:
            return str(letters[-1])
    return None


def _plain_words(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())
