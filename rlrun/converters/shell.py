"""Reads a shell script as text: variables, arrays, sourced files and commands. Nothing is executed.

What only execution could tell (`$(…)`, conditions, loops) stays as it is written, and is noted.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.converters.shell_tokens import Piece, Token, tokens

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<more>\+?)=")
_PARAMETER = re.compile(
    r"(?P<name>\w+|[@*#?!$-])(?:\[(?P<index>[^\]]*)\])?(?::?[-=](?P<default>.*))?", re.DOTALL
)
_SCRIPT_FOLDER = re.compile(r"\$\(\s*(?:cd|dirname)\b.*(?:BASH_SOURCE|\$0)")
_ENDS = {"\n", ";", "&", "&&", "||", "|", ";;"}
_DECLARATIONS = {"export", "declare", "local", "readonly", "typeset"}
_CONDITIONS = {"if", "for", "while", "until", "case"}
_CLOSINGS = {"fi", "done", "esac"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command, expanded."""

    text: str
    place: str
    """`run.sh:12`"""


@dataclass(slots=True)
class Script:
    """What a script says, in the order it says it."""

    folder: Path
    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    commands: list[list[Word]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conditional: dict[str, str] = field(default_factory=dict)
    """Notes about names that are set under a condition, for when something uses them."""


def read_script(path: Path) -> Script:
    """Read a script and the files it sources. ValueError where the script cannot be read."""
    script = Script(path.parent.absolute())
    _read(script, path, path.name, ())
    return script


def _read(script: Script, path: Path, name: str, chain: tuple[Path, ...]) -> None:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no script: byte {error.start} is not UTF-8 text") from None
    reader = _Reader(script, name, path, chain)
    statement: list[Token] = []
    depth = 0
    for token in tokens(text, name):
        depth += {"(": 1, ")": -1}.get(token.operator, 0)
        if token.operator in _ENDS and depth <= 0:
            reader.statement(statement)
            statement, depth = [], 0
        elif token.operator != "\n":
            statement.append(token)
    reader.statement(statement)


@dataclass(slots=True)
class _Reader:
    """Takes the statements of one file."""

    script: Script
    name: str
    path: Path
    chain: tuple[Path, ...]
    conditions: int = 0

    def statement(self, parts: list[Token]) -> None:
        """Take one statement: assignments, `source`, or a command."""
        while parts and parts[0].plain in ("then", "do", "else", "elif", "{", "}", "!", *_DECLARATIONS):
            parts = parts[1:]
        if not parts:
            return
        first = parts[0].plain
        self.conditions += (first in _CONDITIONS) - (first in _CLOSINGS)
        if first in _CONDITIONS or first in _CLOSINGS:
            return
        while parts and (found := _ASSIGNMENT.match(parts[0].plain)):
            parts = self._assign(found, parts)
        if not parts:
            return
        if first in ("source", ".") and len(parts) > 1:
            self._source(parts[1])
        else:
            self.script.commands.append(
                [word for part in parts if not part.operator for word in self._words(part)]
            )

    def _assign(self, found: re.Match[str], parts: list[Token]) -> list[Token]:
        """Take the assignment at the front; what is left of the statement."""
        name, more, line = found["name"], bool(found["more"]), parts[0].line
        if self.conditions:
            note = f"{self.name}:{line}: {name} is set under a condition: taken as if it held"
            self.script.conditional[name] = note
        if len(parts) > 1 and parts[1].operator == "(" and parts[0].plain == found[0]:
            end = next((i for i, part in enumerate(parts) if part.operator == ")"), len(parts))
            words = [word for part in parts[2:end] if not part.operator for word in self._words(part)]
            self.script.arrays[name] = [*(self.script.arrays.get(name, []) if more else []), *words]
            return parts[end + 1 :]
        pieces = _without_start(parts[0].pieces, len(found[0]))
        value = "".join(self._expanded(piece) for piece in pieces)
        self.script.scalars[name] = (self.script.scalars.get(name, "") if more else "") + value
        return parts[1:]

    def _source(self, target: Token) -> None:
        written = "".join(self._expanded(piece) for piece in target.pieces)
        path = Path(written)
        tried = [path] if path.is_absolute() else [self.path.parent / path, Path(path)]
        file = next((each for each in tried if each.is_file()), None)
        where = f"{self.name}:{target.line}"
        if file is None:
            self.script.notes.append(f"{where}: {written} is not there, and nothing of it is read")
        elif file.resolve() in self.chain or file.resolve() == self.path.resolve():
            self.script.notes.append(f"{where}: {written} sources itself; read once")
        else:
            _read(self.script, file, file.name, (*self.chain, self.path.resolve()))

    def _words(self, token: Token) -> list[Word]:
        """A token's words: arrays give several, and an unquoted value is split at blanks."""
        place = f"{self.name}:{token.line}"
        words: list[Word] = []
        current: str | None = None
        for piece in token.pieces:
            array = self._array(piece)
            if array is not None:
                words += array
                continue
            text = self._expanded(piece)
            if piece.kind == "parameter" and not piece.quoted and any(map(str.isspace, text)):
                *whole, text = f"{current or ''}{text}".split() or [""]
                words += [Word(each, place) for each in whole]
                current = None
            if text:
                current = (current or "") + text
        if not words and all(piece.quoted and piece.kind == "text" for piece in token.pieces):
            current = current or ""
        return words if current is None else [*words, Word(current, place)]

    def _array(self, piece: Piece) -> list[Word] | None:
        """The words of `${NAME[@]}`; None for any other piece."""
        found = _PARAMETER.fullmatch(piece.text) if piece.kind == "parameter" else None
        if found is None or found["index"] not in ("@", "*"):
            return None
        self._note_condition(found["name"])
        if found["name"] not in self.script.arrays:
            self.script.notes.append(f"{self.name}: ${{{piece.text}}} is an array that nothing sets")
        return self.script.arrays.get(found["name"], [])

    def _expanded(self, piece: Piece) -> str:
        """A piece as text; what only execution could tell stays as written."""
        if piece.kind == "text":
            return piece.text
        if piece.kind == "command":
            return str(self.path.parent.absolute()) if _SCRIPT_FOLDER.match(piece.text) else piece.text
        found = _PARAMETER.fullmatch(piece.text)
        self._note_condition(found["name"] if found else "")
        if found and found["name"] in self.script.scalars and found["index"] in (None, "0"):
            return self.script.scalars[found["name"]] or (found["default"] or "").strip("\"'")
        if found and found["default"] is not None:
            return found["default"].strip("\"'")
        return f"${{{piece.text}}}"

    def _note_condition(self, name: str) -> None:
        if note := self.script.conditional.pop(name, None):
            self.script.notes.append(note)


def _without_start(pieces: tuple[Piece, ...], count: int) -> list[Piece]:
    """A word's pieces without its first `count` characters, which are text."""
    left = list(pieces)
    while count:
        length = len(left[0].text)
        if length > count:
            left[0] = Piece(left[0].text[count:], left[0].quoted)
            break
        count -= length
        left.pop(0)
    return left
