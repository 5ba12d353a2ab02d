"""Follows the simple commands of a shell script: assignments, redirections, `source`, tests, and other
builtins.
"""

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

SHELLS = ("bash", "sh", "zsh")


class Redirections(NamedTuple):
    """A command's words, its here-document and the file that it writes to."""

    words: list[Token]
    document: Token | None
    target: Token | None


_DECLARATIONS = {"export", "declare", "local", "readonly", "typeset"}
_STATUSES = {"true": True, ":": True, "false": False}
_BUILTINS = ("source", ".", "cd", "unset", "printf", "eval", "set", "shift")
_MAX_CALLS = 20


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

    def simple(self, tokens: Sequence[Token]) -> bool | None:
        """Follows one command, or its assignments, and returns its status."""
        tokens = list(tokens)
        declares = bool(tokens) and tokens[0].keyword in _DECLARATIONS
        while declares and tokens and (tokens[0].keyword in _DECLARATIONS or tokens[0].plain.startswith("-")):
            tokens = tokens[1:]
        status: bool | None = True
        while tokens and (match := ASSIGNMENT.match(tokens[0].plain)) and starts_plainly(tokens[0], match[0]):
            tokens, status = self._assign(match, tokens)
        if not tokens or declares:
            return status
        if tokens[0].operator == "((":
            return self._decide_number(tokens[0])
        if tokens[0].keyword == "[[":
            return self._test([token for token in tokens[1:] if token.keyword != "]]"])
        return self._command(split_redirections(tokens))

    def set(self, name: str, text: str, line: int, assumptions: Sequence[str] = ()) -> None:
        """Sets a variable and the assumptions behind its value."""
        self.script.set_scalar(name, text)
        self.script.arrays.pop(name, None)
        self._assume(name, line, assumptions)

    def _assume(self, name: str, line: int, assumptions: Sequence[str]) -> None:
        doubts = [
            f"{self.file.name}:{line}: {name} is set under a condition that is assumed to hold"
            if doubt == "?"
            else doubt
            for doubt in self.doubts
        ]
        self.script.assumptions[name] = tuple(dict.fromkeys([*assumptions, *doubts]))

    def _assign(self, match: re.Match[str], tokens: list[Token]) -> tuple[list[Token], bool | None]:
        """Follows the first assignment of a command; returns the remaining tokens and the status."""
        name, more, line = match["name"], bool(match["more"]), tokens[0].line
        earlier = self.script.assumptions.get(name, ()) if more or match["index"] else ()
        if len(tokens) > 1 and tokens[1].operator == "(" and len(tokens[0].plain) == match.end():
            end = next((i for i, token in enumerate(tokens) if token.operator == ")"), len(tokens))
            words = [
                word for token in tokens[2:end] if not token.operator for word in self.expansion.words(token)
            ]
            self._assume(name, line, earlier)
            kept = self.script.arrays.get(name, []) if more else []
            self.script.set_array(name, [*kept, *(self._with_assumptions(word, name) for word in words)])
            return tokens[end + 1 :], True
        expansion = self.expansion
        expansion.begin_word(line)
        text = expansion.text(without_start(tokens[0].pieces, match.end()))
        if match["index"] is not None:
            self._assume(name, line, earlier)
            self._set_element(name, match["index"], Word(text, f"{self.file.name}:{line}"))
        else:
            before = self.script.scalars.get(name, "") if more else ""
            self.set(name, before + text, line, [*earlier, *expansion.assumptions])
        return tokens[1:], None if UNKNOWN[0] in text else True

    def _with_assumptions(self, word: Word, name: str) -> Word:
        """Returns a word of an array, with the assumptions behind the array added to its notes."""
        notes = dict.fromkeys([*word.notes, *self.script.assumptions[name]])
        return Word(word.text, word.location, tuple(notes))

    def _set_element(self, name: str, index: str, word: Word) -> None:
        """Sets one element of an array."""
        words, number = self.script.arrays.setdefault(name, []), self.expansion.arithmetic(index)
        if number is not None and 0 <= number < len(words):
            words[number] = self._with_assumptions(word, name)
        else:
            words.append(self._with_assumptions(word, name))

    def _command(self, command: Redirections) -> bool | None:
        words = [word for token in command.words for word in self.expansion.words(token)]
        self._write(command, words)
        name, arguments = (words[0].text, [word.text for word in words[1:]]) if words else (":", [])
        if name in _STATUSES:
            return _STATUSES[name]
        if name in ("[", "test"):
            return self._test([word for word in command.words[1:] if word.plain != "]"])
        if name in self.script.functions:
            return self._call(name, arguments)
        if name in _BUILTINS:
            return self._builtin(name, arguments, command.words[0].line)
        inner = inner_script(words)
        if inner is None and name in SHELLS and command.document is not None and not arguments:
            inner = self.expansion.text(command.document.pieces)
        if inner is not None:
            return self.run(self.parsed(inner))
        doubts = tuple(doubt for doubt in self.doubts if doubt != "?")
        self.script.commands.append(
            [Word(word.text, word.location, (*word.notes, *doubts)) for word in words]
        )
        return None

    def _builtin(self, name: str, arguments: list[str], line: int) -> bool | None:
        """Follows a builtin of the shell that changes the script's state."""
        match name:
            case "source" | "." if arguments:
                self.source(arguments[0], line)
            case "cd":
                target = [argument for argument in arguments if argument not in ("--", "-P", "-L")]
                self.script.folder = _joined_path(self.script.folder, target[0] if target else "/")
            case "unset":
                for variable in arguments:
                    self.script.scalars.pop(variable, None)
                    self.script.arrays.pop(variable, None)
            case "printf":
                if arguments[:1] == ["-v"] and len(arguments) > 2:
                    return self._print_into(arguments[1], arguments[2:], line)
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
        if self.calls > _MAX_CALLS:
            raise ValueError(f"{self.file.name}: the function {name} calls itself without end")
        outer, self.script.positional = self.script.positional, arguments
        status = self.run(self.script.functions[name])
        self.script.positional = outer
        self.calls -= 1
        return status

    def _write(self, command: Redirections, words: Sequence[Word]) -> None:
        """Records the text of a file that `cat > FILE <<END` would write."""
        if command.target is None or command.document is None or [word.text for word in words] != ["cat"]:
            return
        target, text = (self.expansion.text(token.pieces) for token in (command.target, command.document))
        self.script.files[target] = text

    def _print_into(self, name: str, arguments: list[str], line: int) -> bool | None:
        try:
            self.set(name, formatted(arguments), line)
        except ValueError:
            return None
        return True

    def _decide_number(self, token: Token) -> bool | None:
        number = self.expansion.arithmetic(token.plain)
        return None if number is None else bool(number)

    def _test(self, tokens: Sequence[Token]) -> bool | None:
        """Decides a test, as if variables that the script does not set were empty."""
        expansion = self.expansion
        expansion.unset_is_empty = True
        words = []
        for token in tokens:
            expansion.line = token.line
            words.append(token.operator or expansion.text(token.pieces))
        self.tested += expansion.assumptions
        return decide(words)


def _joined_path(folder: str, target: str) -> str:
    return os.path.normpath(f"{folder}/{target}" if not target.startswith("/") else target)


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
