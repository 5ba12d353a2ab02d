"""Finding the answer in a response."""

import re
from typing import Annotated

from pydantic import AfterValidator

BOX = r"\boxed{"
LONGEST_BOX = 10_000


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression, as Python's `re` reads it."""


def last_match(text: str, pattern: str | None) -> str | None:
    """The first group (without groups: all) of the last match, stripped; None without a match.

    Without a pattern, the whole text. `.` matches line ends too.
    """
    if pattern is None:
        return text.strip()
    matches = list(re.finditer(pattern, text, re.DOTALL))
    if not matches:
        return None
    last = matches[-1]
    return (last[1 if last.re.groups else 0] or "").strip()


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, braces matched; None without a complete one."""
    begin = text.rfind(BOX)
    if begin < 0:
        return None
    begin += len(BOX)
    depth = 1
    for brace in re.compile("[{}]").finditer(text, begin, begin + LONGEST_BOX):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[begin : brace.start()]
    return None
