"""Applies the operations after a parameter's name in braces: defaults, patterns, slices, letter case."""

import re
from collections.abc import Callable
from fnmatch import translate

PARAMETER = re.compile(
    r"(?P<prefix>[#!]?)(?P<name>\w+|[@*#?!$-])(?:\[(?P<index>[^\]]*)\])?(?P<operation>.*)", re.DOTALL
)
_DEFAULT = re.compile(r"(?P<colon>:?)(?P<kind>[-=+?])(?P<word>.*)", re.DOTALL)
_SLICE = re.compile(r":\s*(?P<start>-?\d+)(?::\s*(?P<length>-?\d+))?")
_MAX_LENGTH = 2000
"""Maximum length of a value that is matched with patterns: the time grows with the square of the length."""
_REPLACEMENT = re.compile(r"(?P<all>/?)(?P<old>(?:\\.|[^/])*)(?:/(?P<new>.*))?", re.DOTALL)


def applied(operation: str, value: str | None, expand: Callable[[str], str]) -> str | None:
    """Returns a parameter's value after the operation in its braces; None if it cannot be known.

    `value` is None for a parameter that is not set. `expand` expands the word of the operation.
    """
    if not operation:
        return value
    if match := _DEFAULT.fullmatch(operation):
        is_set = bool(value) if match["colon"] else value is not None
        if match["kind"] == "+":
            return expand(match["word"]) if is_set else ""
        return value if is_set or match["kind"] == "?" else expand(match["word"])
    if value is None or len(value) > _MAX_LENGTH:
        return None
    if operation[0] in "%#":
        return _without(value, operation, expand)
    if operation[0] == "/":
        return _replaced(value, operation[1:], expand)
    if match := _SLICE.fullmatch(operation):
        return _sliced(value, int(match["start"]), match["length"])
    cases = {"^^": value.upper(), ",,": value.lower()}
    cases |= {"^": value[:1].upper() + value[1:], ",": value[:1].lower() + value[1:]}
    return cases.get(operation)


def _without(value: str, operation: str, expand: Callable[[str], str]) -> str:
    """Removes the shortest prefix (`#`) or suffix (`%`) that matches a pattern; doubled, the longest."""
    sign = operation[0]
    longest = operation[:2] == sign * 2
    pattern = re.compile(translate(expand(operation[2 if longest else 1 :])))
    sizes = range(len(value) + 1)
    for size in reversed(sizes) if longest else sizes:
        piece = value[:size] if sign == "#" else value[len(value) - size :]
        if pattern.fullmatch(piece):
            return value[size:] if sign == "#" else value[: len(value) - size]
    return value


def _replaced(value: str, operation: str, expand: Callable[[str], str]) -> str:
    match = _REPLACEMENT.fullmatch(operation)
    assert match is not None, "the pattern matches every text"
    old, new = expand(match["old"]), expand(match["new"] or "")
    return value.replace(old, new, -1 if match["all"] else 1) if old else value


def _sliced(value: str, start: int, length: str | None) -> str:
    rest = value[start:] if start >= 0 or -start <= len(value) else ""
    return rest if length is None else rest[: int(length)]
