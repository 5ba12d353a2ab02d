r"""The parts of a mathematical answer: elements of lists and sets, intervals of a union, cells of a matrix.

"(1,2]" -> ordered 1, 2 in "(]"    "\{1,2\}" -> 1 and 2 in any order    "3\pm x" -> 3+x and 3-x in any order
"""

import re
from collections.abc import Callable, Sequence

LONGEST_UNORDERED = 12
"""Longer sets are compared in order: any order takes a comparison of every element with every other."""

_BRACKETS = (("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), (r"\{", r"\}"))
_EITHER_SIGN = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin\{([pvV]matrix)\}(.*)\\end\{\1\}")


def elements(text: str) -> tuple[str, list[str]]:
    """The brackets around a list, pair or interval, and what its commas separate; ("", [text]) for one thing.

    `"(1,2]"` -> `("(]", ["1", "2"])`, `"1,2"` and `"\\{1,2\\}"` -> `("", ["1", "2"])`
    """
    for opening, closing in _BRACKETS:
        if text.startswith(opening) and text.endswith(closing):
            inner = _split(text[len(opening) : -len(closing)], ",")
            if len(inner) > 1:
                return ("" if opening == r"\{" else opening + closing), inner
    return "", _split(text, ",")


def is_unordered(text: str) -> bool:
    r"""Whether the text is a set, or has a `\pm`, which stands for two values."""
    return (text.startswith(r"\{") and text.endswith(r"\}")) or _EITHER_SIGN.search(text) is not None


def both_signs(parts: Sequence[str]) -> list[str]:
    r"""The parts with each `a\pm b` as `a+b` and `a-b`."""
    values: list[str] = []
    for part in parts:
        if _EITHER_SIGN.search(part) is None:
            values.append(part)
        else:
            upper, lower = (_with_sign(part, sign) for sign in "+-")
            values.extend((upper, lower))
    return values


def intervals(text: str) -> list[str]:
    r"""The sets that `\cup` joins; [text] where there is none."""
    return _split(text, r"\cup")


def cells(text: str) -> list[list[str]] | None:
    """The rows of a matrix or column; None where the text is not a matrix."""
    matrix = _MATRIX.fullmatch(text)
    return [row.split("&") for row in matrix[2].split(r"\\")] if matrix else None


def matches(answers: Sequence[str], labels: Sequence[str], same: Callable[[str, str], bool]) -> bool:
    """Whether each label has an answer of its own, in any order."""
    if len(answers) != len(labels):
        return False
    if len(labels) > LONGEST_UNORDERED:
        return all(map(same, answers, labels))
    remaining = list(answers)
    for label in labels:
        position = next((at for at, answer in enumerate(remaining) if same(answer, label)), None)
        if position is None:
            return False
        del remaining[position]
    return True


def _with_sign(text: str, plus: str) -> str:
    minus = "-" if plus == "+" else "+"
    signed = _EITHER_SIGN.sub(lambda found: plus if found[0] == r"\pm" else minus, text)
    return signed.removeprefix("+")


def _split(text: str, separator: str) -> list[str]:
    """Parts between the separators that are in no bracket; all of the text where brackets don't match.

    Intervals may close with another bracket than they open with.
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
