"""Splits a shell script into tokens. Words are kept in pieces, to distinguish expansions from plain text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\\n)+)|(?P<comment>\#[^\n]*)|(?P<newline>\n)"
    r"|(?P<operator>&&|\|\||;;|[0-9]*(?:>>|<<<|<<-?|>&|<&|>|<)|&>|[;&|()])"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HERE_DOCUMENT = re.compile(
    r"<<-?[ \t]*(?P<quote>['\"\\]?)(?P<end>\w+)['\"]?(?P<rest>[^\n]*)\n(?P<body>.*?)^[ \t]*(?P=end)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word: plain text, or a parameter or command that is to be expanded."""

    text: str
    quoted: bool
    kind: str = "text"
    """`text`, `parameter` (the text between the braces) or `command` (as written)."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, in pieces, or an operator."""

    pieces: tuple[Piece, ...]
    operator: str
    line: int

    @property
    def plain(self) -> str:
        """Returns the text of a word, with parameters as they are written."""
        return "".join(piece.text if piece.kind == "text" else f"${{{piece.text}}}" for piece in self.pieces)

    @property
    def keyword(self) -> str:
        """Returns the text of a word if it has no quotes or expansions, as in a keyword; otherwise empty."""
        plain = all(piece.kind == "text" and not piece.quoted for piece in self.pieces)
        return self.plain if plain else ""


def tokens(text: str, name: str = "script") -> Iterator[Token]:
    """Yields the tokens of a script. Raises ValueError for a quote or bracket that is never closed.

    `((…))` is one token with the operator `((`; the word after `<<` holds the here-document.
    """
    at, after_document = 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        line = text.count("\n", 0, at) + 1
        arithmetic = _arithmetic(text, at, f"{name}:{line}") if text.startswith("((", at) else None
        if arithmetic is not None:
            yield Token((Piece(arithmetic, True),), "((", line)
            at += len(arithmetic) + 4
        elif match is None:
            pieces, at = _word(text, at, f"{name}:{line}")
            yield Token(tuple(pieces), "", line)
        elif match["newline"] and after_document:
            yield Token((), "\n", line)
            at, after_document = after_document, 0
        elif (document := _HERE_DOCUMENT.match(text, at)) and not after_document:
            yield Token((), "<<", line)
            yield Token(tuple(_document(document)), "", line)
            at, after_document = document.start("rest"), document.end()
        else:
            at = match.end()
            if match["newline"] or match["operator"]:
                yield Token((), match[0], line)


def pieces_of(text: str, *, quoted: bool) -> list[Piece]:
    """Returns the pieces of a text that is one word, even if it has blanks or operators."""
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        if text[at] in "$`":
            at = _expansion(text, at, "script", pieces, quoted=quoted)
        elif not quoted and text[at] in "'\"\\":
            at = _quotation(text, at, "script", pieces)
        else:
            pieces.append(Piece(text[at], quoted))
            at += 1
    return pieces


def _document(document: re.Match[str]) -> list[Piece]:
    """Returns the pieces of a here-document. Nothing is expanded in it if its end marker is quoted."""
    if document["quote"]:
        return [Piece(document["body"], True)]
    return pieces_of(document["body"], quoted=True)


def _arithmetic(text: str, at: int, where: str) -> str | None:
    """Returns the expression of `((…))`; None if these brackets group commands."""
    end = _closing(text, at, "()", where)
    return text[at + 2 : end - 1] if text[end - 1] == ")" and end > at + 2 else None


def _word(text: str, at: int, where: str) -> tuple[list[Piece], int]:
    """Returns the pieces of the word at `at`, and the offset after it."""
    pieces: list[Piece] = []
    while at < len(text) and text[at] not in " \t\r\n;&|()<>":
        if text[at] in "'\"\\":
            at = _quotation(text, at, where, pieces)
        elif text[at] in "$`":
            at = _expansion(text, at, where, pieces, quoted=False)
        else:
            pieces.append(Piece(text[at], False))
            at += 1
    return pieces, at


def _quotation(text: str, at: int, where: str, pieces: list[Piece]) -> int:
    """Reads quoted text, or the character after a backslash. Returns the offset after it."""
    if text[at] == "\\":
        if text[at + 1 : at + 2] != "\n":
            pieces.append(Piece(text[at + 1 : at + 2], True))
        return at + 2
    if text[at] == "'":
        end = _find(text, "'", at + 1, where)
        pieces.append(Piece(text[at + 1 : end], True))
        return end + 1
    return _double_quoted(text, at + 1, where, pieces)


def _double_quoted(text: str, at: int, where: str, pieces: list[Piece]) -> int:
    """Reads text in double quotes, from its first character. Returns the offset after the closing quote."""
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
    """Reads a parameter or command that begins with `$` or a backtick. Returns the offset after it.

    A `$` that no name or bracket follows is plain text.
    """
    if text[at] == "`":
        end = _find(text, "`", at + 1, where) + 1
        pieces.append(Piece(text[at:end], quoted, "command"))
    elif text.startswith("$(", at):
        end = _closing(text, at + 1, "()", where) + 1
        pieces.append(Piece(text[at:end], quoted, "command"))
    elif text.startswith("${", at):
        end = _closing(text, at + 1, "{}", where) + 1
        pieces.append(Piece(text[at + 2 : end - 1], quoted, "parameter"))
    elif text.startswith("$'", at) and not quoted:
        return _escaped(text, at + 2, where, pieces)
    else:
        name = _NAME.match(text, at + 1)
        end = name.end() if name else at + (2 if text[at + 1 : at + 2] in tuple("@*#?0123456789") else 1)
        kind = "parameter" if end > at + 1 else "text"
        pieces.append(Piece(text[at + 1 : end] if kind == "parameter" else "$", quoted, kind))
    return end


def _escaped(text: str, at: int, where: str, pieces: list[Piece]) -> int:
    """Reads the text of `$'…'`, in which a backslash escapes. Returns the offset after the closing quote."""
    pieces.append(Piece("", True))
    while at < len(text) and text[at] != "'":
        escape = text[at] == "\\"
        character = text[at + 1 : at + 2] if escape else text[at]
        pieces.append(Piece(_ESCAPES.get(character, f"\\{character}") if escape else character, True))
        at += 2 if escape else 1
    if at >= len(text):
        raise ValueError(f"{where}: a quotation mark is never closed")
    return at + 1


def _closing(text: str, at: int, pair: str, where: str) -> int:
    """Returns the offset of the bracket that closes the one at `at`, skipping quotes and here-documents."""
    depth = 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "'" and pair == "()":
            at = _find(text, "'", at + 1, where)
        elif text[at] == '"' and pair == "()":
            at = _double_quoted(text, at + 1, where, []) - 1
        elif pair == "()" and (document := _HERE_DOCUMENT.match(text, at)):
            at = document.end() - 1
        elif text[at] == pair[0]:
            depth += 1
        elif text[at] == pair[1]:
            depth -= 1
            if not depth:
                return at
        at += 1
    raise ValueError(f"{where}: `{pair[0]}` is never closed")


def _find(text: str, character: str, at: int, where: str) -> int:
    """Returns the offset of a closing quote. Raises ValueError if there is none."""
    end = text.find(character, at)
    if end < 0:
        raise ValueError(f"{where}: a quotation mark is never closed")
    return end
