"""Decides the tests of a shell script, `[ … ]` and `[[ … ]]`, where that is possible without running it."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
UNKNOWN = ("$(", "`", "${")
"""Marks of a text that contains an expansion with an unknown value."""


def decide(words: Sequence[str]) -> bool | None:
    """Returns whether a test holds, given its words without brackets; None if only a run could tell."""
    return _either(list(words))


def _either(words: list[str]) -> bool | None:
    """Decides alternatives that are joined by `||` or `-o`."""
    answers = [_both(part) for part in _split(words, ("||", "-o"))]
    return True if True in answers else None if None in answers else False


def _both(words: list[str]) -> bool | None:
    """Decides conditions that are joined by `&&` or `-a`."""
    answers = [_single(part) for part in _split(words, ("&&", "-a"))]
    return False if False in answers else None if None in answers else True


def _split(words: list[str], joints: tuple[str, ...]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in joints and parts[-1]:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _single(words: list[str]) -> bool | None:
    if words[:1] == ["!"]:
        answer = _single(words[1:])
        return None if answer is None else not answer
    if any(mark in word for word in words for mark in UNKNOWN):
        return None
    match words:
        case []:
            return False
        case [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatchcase(left, right)
        case [left, symbol, right] if symbol in _NUMBERS:
            return _compare_numbers(left, symbol, right)
    return None


def _compare_numbers(left: str, symbol: str, right: str) -> bool | None:
    try:
        return _NUMBERS[symbol](int(left or 0), int(right or 0))
    except ValueError:
        return None
