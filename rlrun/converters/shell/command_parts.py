"""Takes a command of a shell script apart: its words, redirections, and the texts of assignments."""

from collections.abc import Sequence
from typing import NamedTuple

from rlrun.converters.shell.state import Word
from rlrun.converters.shell.tokens import Piece, Token

SHELLS = ("bash", "sh", "zsh")


class Redirections(NamedTuple):
    """A command's words, its here-document and the file that it writes to."""

    words: list[Token]
    document: Token | None
    target: Token | None


def split_redirections(tokens: Sequence[Token]) -> Redirections:
    """Separates a command's words from its redirections."""
    words: list[Token] = []
    document = target = None
    at = 0
    while at < len(tokens):
        operator = tokens[at].operator
        follows = at + 1 < len(tokens) and not tokens[at + 1].operator
        if operator and operator[-1] in "<>&" and follows:
            document = tokens[at + 1] if operator == "<<" else document
            target = tokens[at + 1] if operator in (">", ">>") else target
            at += 1
        elif not operator:
            words.append(tokens[at])
        at += 1
    return Redirections(words, document, target)


def inner_script(words: Sequence[Word]) -> str | None:
    """Returns the commands of `bash -c '…'`, which may follow other words, as in `ray job submit`."""
    for shell, option, script in zip(words, words[1:], words[2:], strict=False):
        is_shell = shell.text.rpartition("/")[2] in SHELLS
        if is_shell and option.text.startswith("-") and option.text.endswith("c"):
            return script.text
    return None


def starts_plainly(token: Token, start: str) -> bool:
    """Returns whether a word starts with this text, unquoted, as an assignment must."""
    plain = ""
    for piece in token.pieces:
        if piece.kind != "text" or (piece.quoted and piece.text):
            break
        plain += piece.text
    return plain.startswith(start)


def without_start(pieces: tuple[Piece, ...], count: int) -> list[Piece]:
    """Returns a word's pieces without its first `count` characters, which must be text."""
    remaining = list(pieces)
    while count:
        length = len(remaining[0].text)
        if length > count:
            remaining[0] = Piece(remaining[0].text[count:], remaining[0].quoted)
            break
        count -= length
        remaining.pop(0)
    return remaining
