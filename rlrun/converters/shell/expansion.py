"""Expands the words of a shell script: parameters and the operations in their braces, arrays, arithmetic and
harmless commands.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from rlrun.converters.shell.arithmetic import evaluate
from rlrun.converters.shell.state import MAX_CHARACTERS, Script, ScriptFile, Word
from rlrun.converters.shell.tokens import Piece, Token, pieces_of

_UNRESOLVED = ("$(", "`")
PARAMETER = re.compile(
    r"(?P<prefix>[#!]?)(?P<name>\w+|[@*#?!$-])(?:\[(?P<index>[^\]]*)\])?(?P<operation>.*)", re.DOTALL
)
_DEFAULT = re.compile(r"(?P<colon>:?)(?P<kind>[-=+?])(?P<word>.*)", re.DOTALL)
_SLICE = re.compile(r":\s*(?P<start>-?\d+)(?::\s*(?P<length>-?\d+))?")
_MAX_LENGTH = 2000
"""Maximum length of a value that is matched with patterns: the time grows with the square of the length."""
_REPLACEMENT = re.compile(r"(?P<all>/?)(?P<old>(?:\\.|[^/])*)(?:/(?P<new>.*))?", re.DOTALL)


@dataclass(slots=True)
class Expansion:
    """Expands words with the script's current state.

    Text that only a run could expand stays as written: `${NAME}` for a variable that the script does not set,
    `$(…)` for the output of a program.
    """

    script: Script
    file: ScriptFile
    output: Callable[[str], str | None]
    """Returns the output of the commands in a text; None if it cannot be known."""
    unset_is_empty: bool = False
    """Whether variables that the script does not set expand to nothing, as they do in conditions."""
    line: int = 0
    assumptions: dict[str, None] = field(default_factory=dict)
    """The assumptions behind the texts that were expanded since the last call of `begin_word`."""

    @property
    def location(self) -> str:
        """Returns the current file and line, such as `run.sh:12`."""
        return f"{self.file.name}:{self.line}"

    def begin_word(self, line: int) -> None:
        """Starts a word, without the assumptions of the previous one."""
        self.line, self.assumptions = line, {}

    def words(self, token: Token) -> list[Word]:
        """Returns a token's words: several for arrays and for unquoted values with blanks."""
        self.begin_word(token.line)
        words: list[Word] = []
        current: str | None = None
        arrays = 0
        for piece in token.pieces:
            array = self._array(piece)
            if array is not None:
                words += array
                arrays += 1
                continue
            text = self.expanded(piece)
            if _splits(piece, text):
                *whole, text = f"{current or ''}{text}".split() or [""]
                words += [self._word(complete) for complete in whole]
                current = None
            if text:
                current = (current or "") + text
        if not words and not arrays and any(piece.quoted for piece in token.pieces):
            current = current or ""
        return words if current is None else [*words, self._word(current)]

    def text(self, pieces: Sequence[Piece]) -> str:
        """Returns the expanded pieces as one text, without splitting it into words."""
        texts, length = [], 0
        for piece in pieces:
            texts.append(self.expanded(piece))
            length += len(texts[-1])
            if length > MAX_CHARACTERS:
                raise ValueError(f"{self.location}: the text grows to more than {MAX_CHARACTERS} characters")
        return "".join(texts)

    def arithmetic(self, expression: str) -> int | None:
        """Returns the value of an arithmetic expression; None if it cannot be known."""
        try:
            return evaluate(self.text(pieces_of(expression, quoted=True)), self._number, self._set_number)
        except ValueError:
            return None

    def expanded(self, piece: Piece) -> str:
        """Returns one expanded piece."""
        if piece.kind == "text":
            return piece.text
        return self._command(piece) if piece.kind == "command" else self._parameter(piece)

    def _word(self, text: str) -> Word:
        return Word(text, self.location, tuple(self.assumptions))

    def _array(self, piece: Piece) -> list[Word] | None:
        """Returns the words of `${NAME[@]}` or `$@`; None for any other piece."""
        match = PARAMETER.fullmatch(piece.text) if piece.kind == "parameter" else None
        if match is None or match["prefix"] or match["operation"]:
            return None
        if match["name"] in ("@", "*") or (match["name"].isdigit() and match["index"]):
            return [self._word(argument) for argument in self.script.positional]
        name = match["name"]
        if match["index"] not in ("@", "*") or (piece.quoted and match["index"] == "*"):
            return None
        self._assume(name)
        if name not in self.script.arrays and name in self.script.scalars:
            return [self._word(self.script.scalars[name])]
        if name not in self.script.arrays:
            self.script.note(
                f"{self.file.name}: the script does not set the array {name}, which is assumed to be empty"
            )
        return self.script.arrays.get(name, [])

    def _parameter(self, piece: Piece) -> str:
        match = PARAMETER.fullmatch(piece.text)
        if match is None:
            return f"${{{piece.text}}}"
        name, operation = match["name"], match["operation"]
        self._assume(name)
        value = self._value(name, match["index"])
        if match["prefix"] == "!":
            return (
                f"${{{piece.text}}}"
                if value is None
                else self._parameter(Piece(value, piece.quoted, "parameter"))
            )
        if match["prefix"] == "#":
            return str(
                len(self.script.arrays.get(name, [])) if match["index"] in ("@", "*") else len(value or "")
            )
        if (
            value is not None
            and any(mark in value for mark in ("${", *_UNRESOLVED))
            and operation[:1] in "%#/^,"
        ):
            return f"${{{piece.text}}}" if operation else value
        result = applied(operation, value, lambda word: self.text(pieces_of(word, quoted=piece.quoted)))
        if operation.lstrip(":")[:1] == "=" and result is not None and value is None:
            self.script.set_scalar(name, result)
        required = operation.lstrip(":").startswith("?")
        return self._unset(name, name if required else piece.text) if result is None else result

    def _unset(self, name: str, written: str) -> str:
        """Returns the text for a variable that the script does not set."""
        if not self.unset_is_empty:
            return f"${{{written}}}"
        self.assumptions[f"{self.location}: the script does not set {name}, which is assumed to be empty"] = (
            None
        )
        return ""

    def _value(self, name: str, index: str | None) -> str | None:
        """Returns a parameter's value; None if the script does not set it."""
        if name in ("0", "BASH_SOURCE"):
            return str(self.file.path.absolute())
        if name.isdigit():
            return self.script.positional[int(name) - 1] if int(name) <= len(self.script.positional) else ""
        if name == "#":
            return str(len(self.script.positional))
        if name == "PWD":
            return self.script.folder
        if name == "HOME" and name not in self.script.scalars:
            return "~"
        if name in self.script.arrays:
            words = [word.text for word in self.script.arrays[name]]
            if index in ("@", "*"):
                return self.script.scalars.get("IFS", " ")[:1].join(words)
            number = self.arithmetic(index or "0")
            return words[number] if number is not None and -len(words) <= number < len(words) else ""
        return self.script.scalars.get(name)

    def _command(self, piece: Piece) -> str:
        if piece.text.startswith("$((") and piece.text.endswith("))"):
            number = self.arithmetic(piece.text[3:-2])
            if number is not None:
                return str(number)
        inner = piece.text[2:-1] if piece.text.startswith("$(") else piece.text[1:-1].replace("\\`", "`")
        output = self.output(inner)
        return piece.text if output is None else output.rstrip("\n")

    def _number(self, name: str) -> str | None:
        self._assume(name)
        return self._value(name, None)

    def _set_number(self, name: str, value: int) -> None:
        self.script.scalars[name] = str(value)

    def _assume(self, name: str) -> None:
        self.assumptions |= dict.fromkeys(self.script.assumptions.get(name, ()))


def _splits(piece: Piece, text: str) -> bool:
    """Returns whether a piece's value is split into words: it is unquoted, resolved and has blanks."""
    if piece.kind == "text" or piece.quoted or (piece.kind == "parameter" and '"' in piece.text):
        return False
    return bool(re.search(r"\s", text)) and not any(mark in text for mark in _UNRESOLVED)


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
