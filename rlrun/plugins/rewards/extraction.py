"""Finds the answer in a response."""

import re
from typing import Annotated

from pydantic import AfterValidator

BOX = r"\boxed{"
MAX_BOX_LENGTH = 10_000


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression in the syntax of Python's `re`."""


def last_match(text: str, pattern: str | None) -> str | None:
    """Returns the first group of the pattern's last match, stripped, or the whole match if it has no groups.

    Returns None without a match, and the whole text without a pattern. `.` also matches line ends.
    """
    if pattern is None:
        return text.strip()
    matches = list(re.finditer(pattern, text, re.DOTALL))
    if not matches:
        return None
    last = matches[-1]
    return (last[1 if last.re.groups else 0] or "").strip()


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{...}` up to its matching brace; None if none is complete."""
    begin = text.rfind(BOX)
    if begin < 0:
        return None
    begin += len(BOX)
    depth = 1
    for brace in re.compile("[{}]").finditer(text, begin, begin + MAX_BOX_LENGTH):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[begin : brace.start()]
    return None
