"""Arranges the tokens of a shell script as a tree: commands, conditions, loops and functions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from rlrun.converters.shell.tokens import Token
from rlrun.converters.shell.tree import (
    Block,
    Case,
    Chain,
    For,
    Function,
    Group,
    If,
    Node,
    Pipeline,
    Simple,
    While,
)

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:\[(?P<index>[^\]]*)\])?(?P<more>\+?)=")
_SEPARATORS = ("\n", ";", "&", ";;")
_MAX_DEPTH = 40
_ENDS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac", "{": "}"}


def parse(tokens: Sequence[Token]) -> Block:
    """Returns the statements of a script. Raises ValueError if they are nested too deeply."""
    parser = _Parser(tokens)
    statements: list[Node] = []
    while not parser.at_end:
        statements += parser.block(())
        parser.position += 1  # skips a closing word without an opening one
    return tuple(statements)


@dataclass(slots=True)
class _Parser:
    """Reads statements from left to right."""

    tokens: Sequence[Token]
    position: int = 0
    depth: int = 0

    @property
    def at_end(self) -> bool:
        """Returns whether all tokens were read."""
        return self.position >= len(self.tokens)

    def operator(self) -> str:
        """Returns the operator at this position; empty for a word."""
        return "" if self.at_end else self.tokens[self.position].operator

    def keyword(self) -> str:
        """Returns the plain word at this position; empty for any other token."""
        token = None if self.at_end else self.tokens[self.position]
        return token.keyword if token and not token.operator else ""

    def block(self, ends: tuple[str, ...]) -> Block:
        """Reads statements up to one of the closing words or brackets, which stays unread."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError("the script nests its statements too deeply to be read")
        statements: list[Node] = []
        while not self.at_end:
            if self.operator() in _SEPARATORS and self.operator() not in ends:
                self.position += 1
            elif (self.keyword() or self.operator()) in ends or self.operator() == ")":
                break
            else:
                before = self.position
                statements.append(self.chain())
                self.position += self.position == before
        self.depth -= 1
        return tuple(statements)

    def chain(self) -> Node:
        """Reads pipelines that are joined by `&&` and `||`."""
        first, rest = self.pipeline(), []
        while self.operator() in ("&&", "||"):
            joint = self.operator()
            self.position += 1
            self.skip_lines()
            rest.append((joint, self.pipeline()))
        return Chain(first, tuple(rest))

    def pipeline(self) -> Pipeline:
        """Reads commands that are joined by `|`."""
        negated = self.keyword() == "!"
        self.position += negated
        stages = [self.command()]
        while self.operator() == "|":
            self.position += 1
            self.skip_lines()
            stages.append(self.command())
        return Pipeline(tuple(stages), negated)

    def command(self) -> Node:
        """Reads a compound command or a simple one."""
        node: Node
        match self.keyword():
            case "if":
                node = self.condition()
            case "for":
                node = self.loop()
            case "while" | "until":
                until = self.keyword() == "until"
                self.position += 1
                condition = self.block(("do",))
                node = While(condition, self.body("do", "done"), until)
            case "case":
                node = self.case()
            case "{":
                node = Group(self.body("{", "}"))
            case "function":
                self.position += 1
                return self.function(self.keyword())
            case _:
                if self.operator() == "(":
                    node = Group(self.body("(", ")"))
                elif self.tokens[self.position + 1 : self.position + 3] and self.defines_function():
                    return self.function(self.keyword())
                else:
                    return self.simple()
        self.skip_redirections()
        return node

    def body(self, start: str, end: str) -> Block:
        """Reads the statements between two words, and the words themselves."""
        if (self.keyword() or self.operator()) == start:
            self.position += 1
        statements = self.block((end,))
        self.position += 1
        return statements

    def condition(self) -> If:
        """Reads `if … then … elif … else … fi`."""
        branches: list[tuple[Block, Block]] = []
        word = self.keyword()
        while word in ("if", "elif", "else"):
            self.position += 1
            condition = () if word == "else" else self.block(("then",))
            self.position += self.keyword() == "then"
            branches.append((condition, self.block(("elif", "else", "fi"))))
            word = self.keyword()
        self.position += 1
        return If(tuple(branches))

    def loop(self) -> For:
        """Reads `for NAME in WORDS; do … done` or `for ((…; …; …)); do … done`."""
        self.position += 1
        if self.operator() == "((":
            expression = self.tokens[self.position].plain
            self.position += 1
            self.skip_lines()
            return For("", (), expression, self.body("do", "done"))
        name = self.keyword()
        self.position += 1
        self.position += self.keyword() == "in"
        words = self.words()
        self.skip_lines()
        return For(name, words, None, self.body("do", "done"))

    def case(self) -> Case:
        """Reads `case WORD in PATTERN) … ;; esac`."""
        self.position += 1
        words = self.words()
        self.skip_lines()
        branches: list[tuple[tuple[Token, ...], Block]] = []
        while not self.at_end and self.keyword() != "esac":
            self.position += self.operator() == "("
            patterns = []
            while not self.at_end and self.operator() != ")":
                patterns += [] if self.operator() else [self.tokens[self.position]]
                self.position += 1
            self.position += 1
            branches.append((tuple(patterns), self.block((";;", "esac"))))
            while self.operator() in _SEPARATORS:
                self.position += 1
        self.position += 1
        return Case(words[0] if words else Token((), "", 0), tuple(branches))

    def defines_function(self) -> bool:
        """Returns whether `NAME ()` begins at this position."""
        following = [token.operator for token in self.tokens[self.position + 1 : self.position + 3]]
        return bool(self.keyword()) and following == ["(", ")"] and not ASSIGNMENT.match(self.keyword())

    def function(self, name: str) -> Function:
        """Reads a function's definition, starting at its name."""
        self.position += 1
        while self.operator() in ("(", ")", "\n"):
            self.position += 1
        start = self.keyword() or self.operator()
        return Function(name, self.body(start, _ENDS.get(start, ")")) if start in ("{", "(") else ())

    def words(self) -> tuple[Token, ...]:
        """Reads the words up to the next operator."""
        words = tuple(takewhile(lambda token: not token.operator, self.tokens[self.position :]))
        self.position += len(words)
        return tuple(word for word in words if word.keyword != "in") if words else ()

    def simple(self) -> Simple:
        """Reads the tokens of one command; arrays, tests and redirections keep their operators."""
        start, brackets, test = self.position, 0, False
        while not self.at_end:
            operator, word = self.operator(), self.keyword()
            if self.position == start and word == "[[":
                test = True
            if not test and not brackets:
                array = operator == "(" and self.position > start and self.is_assignment(self.position - 1)
                if operator in ("&&", "||", "|", ")", *_SEPARATORS) or (operator == "(" and not array):
                    break
            brackets += {"(": 1, ")": -1}.get(operator, 0)
            self.position += 1
            if test and word == "]]":
                test = False
            elif test and operator == "\n" and not self.closes_test():
                break
        return Simple(tuple(self.tokens[start : self.position]))

    def closes_test(self) -> bool:
        """Returns whether a later token is `]]`."""
        return any(token.keyword == "]]" for token in self.tokens[self.position :])

    def is_assignment(self, position: int) -> bool:
        """Returns whether the word at a position is `NAME=`, so that a bracket after it opens an array."""
        word = self.tokens[position].keyword
        return bool((match := ASSIGNMENT.match(word)) and match.end() == len(word))

    def skip_lines(self) -> None:
        """Skips line ends and semicolons."""
        while self.operator() in ("\n", ";"):
            self.position += 1

    def skip_redirections(self) -> None:
        """Skips the redirections after a compound command, up to the next separator or operator."""
        while not self.at_end and self.operator() not in ("&&", "||", "|", ")", *_SEPARATORS):
            if not self.operator() and self.tokens[self.position - 1].operator in ("", ")"):
                break
            self.position += 1
