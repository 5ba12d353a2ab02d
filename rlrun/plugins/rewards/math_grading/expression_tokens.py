"""Splits an expression, in LaTeX or calculator notation, into tokens."""

import re

LONGEST_TEXT = 400

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,50}(?:\.\d{1,50})?(?:[eE][+-]?\d{1,3})?(?![\d.]))|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<base>_(?:[0-9a-z]|\{[^{}]{1,20}\}))|(?P<letter>[a-zA-Z](?:_\{?\w+\}?)?)|(?P<symbol>[-+*/^!()\[\]{}·×÷]))"
)
_WORD = re.compile(r"(?<![\\a-zA-Z])(sqrt|arcsin|arccos|arctan|sin|cos|tan|ln|log|exp|pi)(?![a-zA-Z])")
_RUN_OF_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")


class NotAnExpression(ValueError):
    """A text that the grammar does not accept, or a value that is too large to compute."""


def tokenise(text: str) -> list[str]:
    """Returns numbers, letters, commands and symbols in order. Raises NotAnExpression for any other
    character.
    """
    text = _WORD.sub(r"\\\1", text).strip()
    if not text or len(text) > LONGEST_TEXT or _RUN_OF_LETTERS.search(text):
        raise NotAnExpression(text[:LONGEST_TEXT])
    tokens, position = [], 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise NotAnExpression(text)
        tokens.append(token[0].strip())
        position = token.end()
    return tokens
