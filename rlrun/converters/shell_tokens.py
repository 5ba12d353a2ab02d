"""The tokens of a shell script: words in pieces, so that what is to be expanded can be told from text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\\n)+)|(?P<comment>\#[^\n]*)|(?P<newline>\n)"
    r"|(?P<operator>&&|\|\||;;|[0-9]*(?:>>|<<<|>&|<&|>|<)|&>|[;&|()])"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEREDOC = re.compile(
    r"<<-?[ \t]*(['\"]?)(\w+)\1(?P<rest>[^\n]*)\n.*?^[ \t]*\2[ \t]*$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a word: text as it stands, or a parameter or command to be expanded."""

    text: str
    quoted: bool
    kind: str = "text"
    """`text`, `parameter` (what stands between the braces) or `command` (as written)."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, in pieces, or an operator."""

    pieces: tuple[Piece, ...]
    operator: str
    line: int

    @property
    def plain(self) -> str:
        """A word's text where nothing in it is to be expanded; parameters as written."""
        return "".join(piece.text if piece.kind == "text" else f"${{{piece.text}}}" for piece in self.pieces)


def tokens(text: str, name: str = "script") -> Iterator[Token]:
    """The tokens of a script; ValueError for a quotation or bracket that is never closed."""
    text = _HEREDOC.sub(lambda found: found["rest"] + "\n" * found[0].count("\n"), text)
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        line = text.count("\n", 0, at) + 1
        if found is None:
            pieces, at = _word(text, at, f"{name}:{line}")
            yield Token(tuple(pieces), "", line)
            continue
        at = found.end()
        if found["newline"] or found["operator"]:
            yield Token((), found[0], line)


def _word(text: str, at: int, where: str) -> tuple[list[Piece], int]:
    pieces: list[Piece] = []
    while at < len(text) and text[at] not in " \t\r\n;&|()<>":
        character = text[at]
        if character == "\\":
            if text[at + 1 : at + 2] != "\n":
                pieces.append(Piece(text[at + 1 : at + 2], True))
            at += 2
        elif character == "'":
            end = _find(text, "'", at + 1, where)
            pieces.append(Piece(text[at + 1 : end], True))
            at = end + 1
        elif character == '"':
            at = _double_quoted(text, at + 1, where, pieces)
        elif character in "$`":
            at = _expansion(text, at, where, pieces, quoted=False)
        else:
            pieces.append(Piece(character, False))
            at += 1
    return pieces, at


def _double_quoted(text: str, at: int, where: str, pieces: list[Piece]) -> int:
    pieces.append(Piece("", True))
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            pieces.append(Piece(text[at + 1].replace("\n", ""), True))
            at += 2
        elif text[at] in "$`":
            at = _expansion(text, at, where, pieces, quoted=True)
        else:
            pieces.append(Piece(text[at], True))
            at += 1
    if at >= len(text):
        raise ValueError(f"{where}: a quotation mark is never closed")
    return at + 1


def _expansion(text: str, at: int, where: str, pieces: list[Piece], *, quoted: bool) -> int:
    """A parameter or command from its `$` or backtick on; a lone `$` is text."""
    if text[at] == "`":
        end = _find(text, "`", at + 1, where) + 1
        pieces.append(Piece(text[at:end], quoted, "command"))
    elif text.startswith("$(", at):
        end = _closing(text, at + 1, "()", where) + 1
        pieces.append(Piece(text[at:end], quoted, "command"))
    elif text.startswith("${", at):
        end = _closing(text, at + 1, "{}", where) + 1
        pieces.append(Piece(text[at + 2 : end - 1], quoted, "parameter"))
    else:
        name = _NAME.match(text, at + 1)
        end = name.end() if name else at + (2 if text[at + 1 : at + 2] in tuple("@*#?0123456789") else 1)
        kind = "parameter" if end > at + 1 else "text"
        pieces.append(Piece(text[at + 1 : end] if kind == "parameter" else "$", quoted, kind))
    return end


def _closing(text: str, at: int, pair: str, where: str) -> int:
    """Offset of the bracket that closes the one at `at`; quotations inside are skipped."""
    depth = 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "'" and pair == "()":
            at = _find(text, "'", at + 1, where)
        elif text[at] == pair[0]:
            depth += 1
        elif text[at] == pair[1]:
            depth -= 1
            if not depth:
                return at
        at += 1
    raise ValueError(f"{where}: `{pair[0]}` is never closed")


def _find(text: str, what: str, at: int, where: str) -> int:
    end = text.find(what, at)
    if end < 0:
        raise ValueError(f"{where}: a quotation mark is never closed")
    return end
