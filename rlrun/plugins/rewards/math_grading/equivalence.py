r"""Compares two mathematical answers: first as text, then element by element, then by value.

same_answer("\{1, \frac12\}", "\{0.5, 1\}")
  normalise        one spelling for LaTeX and plain text
  _same_unions     "A \cup B": each interval of one has its counterpart in the other
  _same_elements   lists and pairs in order, sets in any order
  _same_part       matrices cell by cell
  _same_value      expressions, evaluated at a few points
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from math import gcd

from rlrun.plugins.rewards.math_grading.latex import normalise

MAX_ANSWER_LENGTH = 2000

_CALCULABLE = re.compile(r"\d|[-+*/^()\\]|^[a-zA-Z]{1,2}$")
_PERCENT = re.compile(r"\d\s*\\?%[\s$.]*$")
_BRACKETS = re.compile(r"[(){}\[\]]+")
_WORD = re.compile(
    r"(?!pi$)(?:[a-z]{4,}|[a-z]*[eio][a-z]+|[a-z]+[eio]|a[mnst]|[hmp]a|[bm]y|u[mps])", re.IGNORECASE
)
"""Letters that are read as a word: in products of letters, the constants e and i, and o, are rare."""
_POWER = r"(?:\^(?:\{[-+]?\d+\}|\d+))?"
_SCALE = r"(?:\*10\^\{[-+]?\d+\}){0,2}"
_NUMBER = re.compile(rf"[({{]*[-+]*\d+(?:\.\d+)?(?:[eE][-+]?\d+)?{_POWER}{_SCALE}[)}}]*")
_TERM = r"[-+]?(\d+)(?:\^(?:\{[1-9]\d*\}|[1-9]\d*))?"
_FRACTION = re.compile(
    rf"[({{]*[-+]*[({{]*(?:{_TERM}/{_TERM}|\\frac\{{{_TERM}\}}\{{{_TERM}\}})[)}}]*{_SCALE}[)}}]*"
)
"""A fraction of whole numbers or their powers; a power of ten may follow."""
_MAX_UNORDERED = 12
"""Longer sets are compared in order, because comparing them in any order compares every pair of elements."""

_BRACKET_PAIRS = (("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), (r"\{", r"\}"))
_EITHER_SIGN = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin\{([pvV]matrix)\}(.*)\\end\{\1\}")


def same_answer(answer: str, label: str) -> bool:
    """Returns whether the answer is the label. An empty answer never is, and a long one only word for word.

    An answer has to be worked out. If the label is a number, the answer must be a number or a fraction in
    lowest terms: `40+2` is not 42, `1.25+1.25` is not 2.5, and `2/4` is neither `1/2` nor 0.5, but `2^{10}`
    is 1024, `3*10^{5}` is 300000, and `5/2` is 2.5.
    """
    if len(answer) > MAX_ANSWER_LENGTH:
        return answer.strip() == label.strip() != ""
    left, right = normalise(answer), _normalised_label(label)
    if not left or not right:
        return False
    if left.casefold() == right.casefold() or _same_unions(left, right):
        return True
    values = _without_percent(answer, left, label, right)
    return values is not None and _same_value(*values)


@lru_cache(maxsize=4096)
def _normalised_label(label: str) -> str:
    """Returns the normalised label; it is cached because all samples of a group share their label."""
    return normalise(label)


def _without_percent(answer: str, left: str, label: str, right: str) -> tuple[str, str] | None:
    """Returns both texts with the percentage divided by 100, since 25% is 25 and also 0.25.

    Returns None unless exactly one of them is a percentage.
    """
    percent = [_PERCENT.search(text) is not None for text in (answer, label)]
    if percent[0] == percent[1]:
        return None
    return (f"{left}*10^{{-2}}", right) if percent[0] else (left, f"{right}*10^{{-2}}")


def _same_unions(left: str, right: str) -> bool:
    return _match_answers(_split_union(left), _split_union(right), _same_elements)


def _same_elements(left: str, right: str) -> bool:
    left_brackets, left_parts = split_elements(left)
    right_brackets, right_parts = split_elements(right)
    if left_brackets != right_brackets:
        return False
    if _is_unordered(left) or _is_unordered(right):
        return _match_answers(_expand_signs(left_parts), _expand_signs(right_parts), _same_part)
    return len(left_parts) == len(right_parts) and all(map(_same_part, left_parts, right_parts))


def _same_part(answer: str, label: str) -> bool:
    """Compares matrices cell by cell, and anything else by value."""
    rows, label_rows = _matrix_rows(answer), _matrix_rows(label)
    if rows is None or label_rows is None:
        return _same_value(answer, label)
    if [len(row) for row in rows] != [len(row) for row in label_rows]:
        return False
    return all(map(_same_value, chain.from_iterable(rows), chain.from_iterable(label_rows)))


def _same_value(answer: str, label: str) -> bool:
    """Compares numbers and expressions by value, and words as text: `no` is not a product of letters."""
    if answer.casefold() == label.casefold():
        return True
    words = [_BRACKETS.sub("", side).casefold() for side in (answer, label)]
    if any(map(_WORD.fullmatch, words)):
        return words[0] == words[1]
    if not any(_CALCULABLE.search(side) for side in (answer, label)) or not _is_worked_out(answer, label):
        return False
    from rlrun.plugins.rewards.math_grading.expression import (
        expressions_are_equal,
    )  # mpmath, which checking a spec does not need

    return expressions_are_equal(answer, label)


def _is_worked_out(answer: str, label: str) -> bool:
    """Returns whether the answer is a number or a fraction in lowest terms, if the label is either."""
    if not _NUMBER.fullmatch(label) and not _FRACTION.fullmatch(label):
        return True
    fraction = _FRACTION.fullmatch(answer)
    if fraction is None:
        return _NUMBER.fullmatch(answer) is not None
    over, under = (int(digits) for digits in fraction.groups() if digits is not None)
    return under > 1 and gcd(over, under) == 1


def split_elements(text: str) -> tuple[str, list[str]]:
    """Returns the brackets around a list, pair or interval, and its elements; `("", [text])` for one value.

    `"(1,2]"` -> `("(]", ["1", "2"])`, `"1,2"` and `"\\{1,2\\}"` -> `("", ["1", "2"])`
    """
    for opening, closing in _BRACKET_PAIRS:
        if text.startswith(opening) and text.endswith(closing):
            inner = _split(text[len(opening) : -len(closing)], ",")
            if len(inner) > 1:
                return ("" if opening == r"\{" else opening + closing), inner
    return "", _split(text, ",")


def _is_unordered(text: str) -> bool:
    r"""Returns whether the text is a set, or contains a `\pm`, which gives two values."""
    return (text.startswith(r"\{") and text.endswith(r"\}")) or _EITHER_SIGN.search(text) is not None


def _expand_signs(parts: Sequence[str]) -> list[str]:
    r"""Returns the parts, with each `a\pm b` expanded to `a+b` and `a-b`."""
    values: list[str] = []
    for part in parts:
        if _EITHER_SIGN.search(part) is None:
            values.append(part)
        else:
            upper, lower = (_choose_sign(part, sign) for sign in "+-")
            values.extend((upper, lower))
    return values


def _split_union(text: str) -> list[str]:
    r"""Returns the sets that `\cup` joins; [text] where there is only one."""
    return _split(text, r"\cup")


def _matrix_rows(text: str) -> list[list[str]] | None:
    """Returns the rows of a matrix or column; None if the text is not a matrix."""
    matrix = _MATRIX.fullmatch(text)
    return [row.split("&") for row in matrix[2].split(r"\\")] if matrix else None


def _match_answers(answers: Sequence[str], labels: Sequence[str], same: Callable[[str, str], bool]) -> bool:
    """Returns whether answers and labels can be paired, in any order, so that each pair is the same."""
    if len(answers) != len(labels):
        return False
    if len(labels) > _MAX_UNORDERED:
        return all(map(same, answers, labels))
    remaining = list(answers)
    for label in labels:
        position = next((i for i, answer in enumerate(remaining) if same(answer, label)), None)
        if position is None:
            return False
        del remaining[position]
    return True


def _choose_sign(text: str, plus: str) -> str:
    minus = "-" if plus == "+" else "+"
    signed = _EITHER_SIGN.sub(lambda match: plus if match[0] == r"\pm" else minus, text)
    return signed.removeprefix("+")


def _split(text: str, separator: str) -> list[str]:
    """Returns the parts between separators outside of brackets, or all of the text if its brackets do not
    match.

    Any closing bracket closes any opening one, because half-open intervals mix them.
    """
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return [text]
        elif depth == 0 and text.startswith(separator, position):
            parts.append(text[begin:position])
            begin = position + len(separator)
    return [*parts, text[begin:]]
