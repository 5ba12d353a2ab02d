r"""Gives math-verify's verdict on two answers without math-verify where it is certain; a hundred times as
fast.

    "(1, \frac12)", "\left(1,0.5\right)" -> True      "2x", "3x" -> False      "7 apples", "7" -> None

It only judges numbers, letters, operators and lists of them; everything else is left to the library.
"""

import re
from dataclasses import dataclass

from rlrun.plugins.rewards.math_grading.expression import NotAnExpression, values_at_points
from rlrun.plugins.rewards.math_grading.latex import unify_spelling

FARTHEST_EQUAL = 1e-14
NEAREST_DIFFERENT = 1e-3
"""Relative distances. Between the two, the verdict depends on how the library rounds."""

_BRACKETS = {"(": ")", "[": "]"}
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_UNCERTAIN = re.compile(
    r"\d\s+\d|\d\s*\\frac|\d[eE]|[a-zA-Z]{2}|\\(?:log|ln|text|mathrm|in|le|ge|ne|pm|cup|circ)|[eidA-Z<>|;:_'\"]"
)
_NEUTRAL = re.compile(r"(?<!\d)\\frac(?![a-zA-Z])|\\(?:sqrt|pi|sin|cos|tan|cdot|times|div)(?![a-zA-Z])")
_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?")
_ASSIGNED = re.compile(r"[a-zA-Z]\s*=(.*)")
_MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}")


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer as one value, or as several values of one kind."""

    kind: str
    parts: tuple[str, ...]


def quick_verdict(answer: str, label: str) -> bool | None:
    """Returns whether the answer is the label, or None if evaluating both does not decide it."""
    if "=" in answer and "=" in label:
        return None
    left, right = _read(answer), _read(label)
    if left is None or right is None:
        return None
    if (left.kind == "value") != (right.kind == "value"):
        return None if None in map(_values, left.parts + right.parts) else False
    if left.kind != right.kind or len(left.parts) != len(right.parts):
        return None
    if left.kind == "set":
        return _same_set(left.parts, right.parts)
    verdicts = [_same(*pair) for pair in zip(left.parts, right.parts, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _same_set(left: tuple[str, ...], right: tuple[str, ...]) -> bool | None:
    table = [[_same(left_part, right_part) for right_part in right] for left_part in left]
    if any(verdict is None for row in table for verdict in row):
        return None
    columns = zip(*table, strict=True)
    if all(sum(map(bool, row)) == 1 for row in table) and all(any(column) for column in columns):
        return True
    return None if any(sum(map(bool, row)) > 1 for row in table) else False


def _read(text: str) -> _Answer | None:
    text = unify_spelling(text)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [row.split("&") for row in matrix[1].split(r"\\")]
        shape = "x".join(str(len(row)) for row in rows)
        return _Answer(f"matrix {shape}", tuple(cell for row in rows for cell in row))
    assigned = _ASSIGNED.fullmatch(text)
    if assigned:
        text = assigned[1].strip()
    if "=" in text or "matrix" in text or not text:
        return None
    if _THOUSANDS.fullmatch(text):
        return _Answer("value", (text.replace(",", ""),))
    return _list(text)


def _list(text: str) -> _Answer | None:
    if text.startswith(r"\{") and text.endswith(r"\}"):
        parts = text[2:-2].split(",")
        return _Answer("set", tuple(parts)) if len(parts) > 1 else None
    if "," not in text:
        return _Answer("value", (text,))
    opening, closing = text[0], text[-1]
    inner = text[1:-1]
    if any(bracket in inner for bracket in "()[]"):
        return None
    if opening in _BRACKETS and closing in _BRACKETS.values():
        return _Answer(opening + closing, tuple(inner.split(",")))
    return None


def _same(left: str, right: str) -> bool | None:
    left_values, right_values = _values(left), _values(right)
    if left_values is None or right_values is None:
        return None
    distances = [_distance(a, b) for a in left_values for b in right_values]
    if any(distance <= FARTHEST_EQUAL for distance in distances):
        return True
    return False if all(distance >= NEAREST_DIFFERENT for distance in distances) else None


def _values(text: str) -> list[tuple[complex, ...]] | None:
    """Returns the values that a text may have, each at the same few points: 75 % may be 75 and 0.75."""
    plain = text.strip().removesuffix("%").removesuffix("\\").strip()
    if _UNCERTAIN.search(_NEUTRAL.sub("#", plain)):
        return None
    try:
        values = values_at_points(plain)
    except (NotAnExpression, ZeroDivisionError, OverflowError):
        return None
    if plain == text.strip():
        return [values]
    return [values, tuple(value / 100 for value in values)] if _DECIMAL.fullmatch(plain) else None


def _distance(left: tuple[complex, ...], right: tuple[complex, ...]) -> float:
    """Returns the largest relative distance at any point."""
    return max(float(abs(a - b) / max(1, abs(a), abs(b))) for a, b in zip(left, right, strict=True))
