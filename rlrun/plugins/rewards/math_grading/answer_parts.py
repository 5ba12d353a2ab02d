r"""Splits a mathematical answer into elements of lists and sets, intervals of a union, and cells of a matrix.

"(1,2]" -> ordered 1, 2 in "(]"    "\{1,2\}" -> 1 and 2 in any order    "3\pm x" -> 3+x and 3-x in any order
"""

import re
from collections.abc import Callable, Sequence

MAX_UNORDERED = 12
"""Longer sets are compared in order, because comparing them in any order compares every pair of elements."""

_BRACKETS = (("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), (r"\{", r"\}"))
_EITHER_SIGN = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin\{([pvV]matrix)\}(.*)\\end\{\1\}")


def split_elements(text: str) -> tuple[str, list[str]]:
    """Returns the brackets around a list, pair or interval, and its elements; `("", [text])` for one value.

    `"(1,2]"` -> `("(]", ["1", "2"])`, `"1,2"` and `"\\{1,2\\}"` -> `("", ["1", "2"])`
    """
    for opening, closing in _BRACKETS:
        if text.startswith(opening) and text.endswith(closing):
            inner = _split(text[len(opening) : -len(closing)], ",")
            if len(inner) > 1:
                return ("" if opening == r"\{" else opening + closing), inner
    return "", _split(text, ",")


def is_unordered(text: str) -> bool:
    r"""Returns whether the text is a set, or contains a `\pm`, which gives two values."""
    return (text.startswith(r"\{") and text.endswith(r"\}")) or _EITHER_SIGN.search(text) is not None


def expand_signs(parts: Sequence[str]) -> list[str]:
    r"""Returns the parts, with each `a\pm b` expanded to `a+b` and `a-b`."""
    values: list[str] = []
    for part in parts:
        if _EITHER_SIGN.search(part) is None:
            values.append(part)
        else:
            upper, lower = (_choose_sign(part, sign) for sign in "+-")
            values.extend((upper, lower))
    return values


def split_union(text: str) -> list[str]:
    r"""Returns the sets that `\cup` joins; [text] where there is only one."""
    return _split(text, r"\cup")


def matrix_rows(text: str) -> list[list[str]] | None:
    """Returns the rows of a matrix or column; None if the text is not a matrix."""
    matrix = _MATRIX.fullmatch(text)
    return [row.split("&") for row in matrix[2].split(r"\\")] if matrix else None


def match_answers(answers: Sequence[str], labels: Sequence[str], same: Callable[[str, str], bool]) -> bool:
    """Returns whether answers and labels can be paired, in any order, so that each pair is the same."""
    if len(answers) != len(labels):
        return False
    if len(labels) > MAX_UNORDERED:
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
