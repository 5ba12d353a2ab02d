"""Follows the simple commands of a shell script: assignments, `source`, tests, and other builtins."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlrun.converters.shell.conditions import UNKNOWN, decide
from rlrun.converters.shell.expansion import Expansion
from rlrun.converters.shell.programs import formatted
from rlrun.converters.shell.state import Script, ScriptFile, Word
from rlrun.converters.shell.syntax import ASSIGNMENT
from rlrun.converters.shell.tokens import Piece, Token
from rlrun.converters.shell.tree import Block

_DECLARATIONS = {"export", "declare", "local", "readonly", "typeset"}
_STATUSES = {"true": True, ":": True, "false": False}
_BUILTINS = ("source", ".", "cd", "unset", "printf", "eval", "set", "shift")
_SHELLS = ("bash", "sh", "zsh")
_DEEPEST_CALLS = 20


class Redirections(NamedTuple):
    """A command's words, its here-document and the file that it writes to."""

    words: list[Token]
    document: Token | None
    target: Token | None


@dataclass(slots=True)
class Commands(ABC):
    """Follows the commands of one file. A status is None if only a run could tell."""

    script: Script
    file: ScriptFile
    doubts: list[str] = field(default_factory=list)
    """Assumptions under which the current commands are followed; `?` is a condition that may not hold."""
    tested: list[str] = field(default_factory=list)
    """Assumptions behind the tests that were decided since `tested` was last cleared."""
    calls: int = 0

    @property
    def expansion(self) -> Expansion:
        """Returns an expansion with the script's current state."""
        return Expansion(self.script, self.file, self.output_of)

    @abstractmethod
    def run(self, block: Block) -> bool | None:
        """Follows statements and returns the status of the last one."""

    @abstractmethod
    def output_of(self, text: str) -> str | None:
        """Returns the output of the commands in a text; None if only a run could tell."""

    @abstractmethod
    def source(self, written: str, line: int) -> None:
        """Follows another file."""

    @abstractmethod
    def parsed(self, text: str) -> Block:
        """Returns the statements of a text."""

    def simple(self, parts: Sequence[Token]) -> bool | None:
        """Follows one command, or its assignments, and returns its status."""
        parts = list(parts)
        declares = bool(parts) and parts[0].keyword in _DECLARATIONS
        while declares and parts and (parts[0].keyword in _DECLARATIONS or parts[0].plain.startswith("-")):
            parts = parts[1:]
        status: bool | None = True
        while parts and (match := ASSIGNMENT.match(parts[0].plain)) and _starts_plainly(parts[0], match[0]):
            parts, status = self._assign(match, parts)
        if not parts or declares:
            return status
        if parts[0].operator == "((":
            return self._decided_number(parts[0])
        if parts[0].keyword == "[[":
            return self._test([part for part in parts[1:] if part.keyword != "]]"])
        return self._command(redirections(parts))

    def set(self, name: str, text: str, line: int, assumptions: Sequence[str] = ()) -> None:
        """Sets a variable and the assumptions behind its value."""
        self.script.set_scalar(name, text)
        self.script.arrays.pop(name, None)
        self._assume(name, line, assumptions)

    def _assume(self, name: str, line: int, assumptions: Sequence[str]) -> None:
        doubts = [
            f"{self.file.name}:{line}: {name} is set under a condition: taken as if it held"
            if doubt == "?"
            else doubt
            for doubt in self.doubts
        ]
        self.script.assumptions[name] = tuple(dict.fromkeys([*assumptions, *doubts]))

    def _assign(self, match: re.Match[str], parts: list[Token]) -> tuple[list[Token], bool | None]:
        """Follows the first assignment of a command; returns the remaining tokens and the status."""
        name, more, line = match["name"], bool(match["more"]), parts[0].line
        earlier = self.script.assumptions.get(name, ()) if more or match["index"] else ()
        if len(parts) > 1 and parts[1].operator == "(" and len(parts[0].plain) == match.end():
            end = next((i for i, part in enumerate(parts) if part.operator == ")"), len(parts))
            words = [
                word for part in parts[2:end] if not part.operator for word in self.expansion.words(part)
            ]
            self._assume(name, line, earlier)
            kept = self.script.arrays.get(name, []) if more else []
            self.script.set_array(name, [*kept, *(self._assumed(word, name) for word in words)])
            return parts[end + 1 :], True
        expansion = self.expansion
        expansion.fresh(line)
        text = expansion.text(_without_start(parts[0].pieces, match.end()))
        if match["index"] is not None:
            self._assume(name, line, earlier)
            self._set_element(name, match["index"], Word(text, f"{self.file.name}:{line}"))
        else:
            before = self.script.scalars.get(name, "") if more else ""
            self.set(name, before + text, line, [*earlier, *expansion.assumptions])
        return parts[1:], None if UNKNOWN[0] in text else True

    def _assumed(self, word: Word, name: str) -> Word:
        """Returns a word of an array, with the assumptions behind the array added to its notes."""
        notes = dict.fromkeys([*word.notes, *self.script.assumptions[name]])
        return Word(word.text, word.place, tuple(notes))

    def _set_element(self, name: str, index: str, word: Word) -> None:
        """Sets one element of an array."""
        words, number = self.script.arrays.setdefault(name, []), self.expansion.arithmetic(index)
        if number is not None and 0 <= number < len(words):
            words[number] = self._assumed(word, name)
        else:
            words.append(self._assumed(word, name))

    def _command(self, given: Redirections) -> bool | None:
        words = [word for token in given.words for word in self.expansion.words(token)]
        self._write(given, words)
        name, arguments = (words[0].text, [word.text for word in words[1:]]) if words else (":", [])
        if name in _STATUSES:
            return _STATUSES[name]
        if name in ("[", "test"):
            return self._test([word for word in given.words[1:] if word.plain != "]"])
        if name in self.script.functions:
            return self._call(name, arguments)
        if name in _BUILTINS:
            return self._builtin(name, arguments, given.words[0].line)
        inner = _inner_script(words)
        if inner is None and name in _SHELLS and given.document is not None and not arguments:
            inner = self.expansion.text(given.document.pieces)
        if inner is not None:
            return self.run(self.parsed(inner))
        doubts = tuple(doubt for doubt in self.doubts if doubt != "?")
        self.script.commands.append([Word(word.text, word.place, (*word.notes, *doubts)) for word in words])
        return None

    def _builtin(self, name: str, arguments: list[str], line: int) -> bool | None:
        """Follows a builtin of the shell that changes the script's state."""
        match name:
            case "source" | "." if arguments:
                self.source(arguments[0], line)
            case "cd":
                target = [each for each in arguments if each not in ("--", "-P", "-L")]
                self.script.folder = _joined(self.script.folder, target[0] if target else "/")
            case "unset":
                for each in arguments:
                    self.script.scalars.pop(each, None)
                    self.script.arrays.pop(each, None)
            case "printf":
                if arguments[:1] == ["-v"] and len(arguments) > 2:
                    return self._printed_into(arguments[1], arguments[2:], line)
            case "set" if "--" in arguments:
                self.script.positional = arguments[arguments.index("--") + 1 :]
            case "shift":
                count = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
                self.script.positional = self.script.positional[count:]
            case "eval":
                return self.run(self.parsed(" ".join(arguments)))
        return True

    def _call(self, name: str, arguments: list[str]) -> bool | None:
        """Follows a call of one of the script's functions."""
        self.calls += 1
        if self.calls > _DEEPEST_CALLS:
            raise ValueError(f"{self.file.name}: the function {name} calls itself without end")
        outer, self.script.positional = self.script.positional, arguments
        status = self.run(self.script.functions[name])
        self.script.positional = outer
        self.calls -= 1
        return status

    def _write(self, given: Redirections, words: Sequence[Word]) -> None:
        """Records the text of a file that `cat > FILE <<END` would write."""
        if given.target is None or given.document is None or [word.text for word in words] != ["cat"]:
            return
        target, text = (self.expansion.text(token.pieces) for token in (given.target, given.document))
        self.script.files[target] = text

    def _printed_into(self, name: str, arguments: list[str], line: int) -> bool | None:
        try:
            self.set(name, formatted(arguments), line)
        except ValueError:
            return None
        return True

    def _decided_number(self, token: Token) -> bool | None:
        number = self.expansion.arithmetic(token.plain)
        return None if number is None else bool(number)

    def _test(self, parts: Sequence[Token]) -> bool | None:
        """Decides a test, as if variables that the script does not set were empty."""
        expansion = self.expansion
        expansion.outside_is_empty = True
        words = []
        for part in parts:
            expansion.line = part.line
            words.append(part.operator or expansion.text(part.pieces))
        self.tested += expansion.assumptions
        return decide(words)


def _inner_script(words: Sequence[Word]) -> str | None:
    """Returns the commands of `bash -c '…'`, which may follow other words, as in `ray job submit`."""
    for shell, option, script in zip(words, words[1:], words[2:], strict=False):
        is_shell = shell.text.rpartition("/")[2] in _SHELLS
        if is_shell and option.text.startswith("-") and option.text.endswith("c"):
            return script.text
    return None


def redirections(parts: Sequence[Token]) -> Redirections:
    """Separates a command's words from its redirections."""
    words: list[Token] = []
    document = target = None
    at = 0
    while at < len(parts):
        operator = parts[at].operator
        follows = at + 1 < len(parts) and not parts[at + 1].operator
        if operator and operator[-1] in "<>&" and follows:
            document = parts[at + 1] if operator == "<<" else document
            target = parts[at + 1] if operator in (">", ">>") else target
            at += 1
        elif not operator:
            words.append(parts[at])
        at += 1
    return Redirections(words, document, target)


def _joined(folder: str, target: str) -> str:
    return os.path.normpath(f"{folder}/{target}" if not target.startswith("/") else target)


def _starts_plainly(token: Token, start: str) -> bool:
    """Returns whether a word starts with this text, unquoted, as an assignment must."""
    plain = ""
    for piece in token.pieces:
        if piece.kind != "text" or (piece.quoted and piece.text):
            break
        plain += piece.text
    return plain.startswith(start)


def _without_start(pieces: tuple[Piece, ...], count: int) -> list[Piece]:
    """Returns a word's pieces without its first `count` characters, which must be text."""
    left = list(pieces)
    while count:
        length = len(left[0].text)
        if length > count:
            left[0] = Piece(left[0].text[count:], left[0].quoted)
            break
        count -= length
        left.pop(0)
    return left
