"""The tokens of an expression, in LaTeX or as a calculator takes it."""

import re

LONGEST_TEXT = 400

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,50}(?:\.\d{1,50})?(?:[eE][+-]?\d{1,3})?(?![\d.]))|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<base>_(?:[0-9a-z]|\{[^{}]{1,20}\}))|(?P<letter>[a-zA-Z](?:_\{?\w+\}?)?)|(?P<symbol>[-+*/^!()\[\]{}·×÷]))"
)
_WORD = re.compile(r"(?<![\\a-zA-Z])(sqrt|arcsin|arccos|arctan|sin|cos|tan|ln|log|exp|pi)(?![a-zA-Z])")
_RUN_OF_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")


class NotAnExpression(ValueError):
    """Text that this grammar does not read, or a value too large to compute."""


def tokens_of(text: str) -> list[str]:
    """Numbers, letters, commands and symbols in order. NotAnExpression where something is none of these."""
    text = _WORD.sub(r"\\\1", text).strip()
    if not text or len(text) > LONGEST_TEXT or _RUN_OF_LETTERS.search(text):
        raise NotAnExpression(text[:LONGEST_TEXT])
    tokens, position = [], 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise NotAnExpression(text)
        tokens.append(found[0].strip())
        position = found.end()
    return tokens
