"""The statements of a shell script: commands, conditions, loops and functions, as a tree."""

from dataclasses import dataclass

from rlrun.converters.shell.tokens import Token


@dataclass(frozen=True, slots=True)
class Simple:
    """One command with its redirections, or assignments without a command."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands joined by `|`; each reads the output of the previous one."""

    stages: tuple["Node", ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Pipelines joined by `&&` and `||`."""

    first: Pipeline
    rest: tuple[tuple[str, Pipeline], ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with their bodies, in order; the condition of `else` is empty."""

    branches: tuple[tuple["Block", "Block"], ...]


@dataclass(frozen=True, slots=True)
class For:
    """A loop over words, or a loop with an arithmetic condition."""

    name: str
    words: tuple[Token, ...]
    arithmetic: str | None
    """The expressions of `for ((…; …; …))`; None for a loop over words."""
    body: "Block"


@dataclass(frozen=True, slots=True)
class While:
    """A loop that runs while its condition holds, or until it does."""

    condition: "Block"
    body: "Block"
    until: bool


@dataclass(frozen=True, slots=True)
class Case:
    """The subject of `case`, and the patterns and body of each branch."""

    subject: Token
    branches: tuple[tuple[tuple[Token, ...], "Block"], ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function's definition."""

    name: str
    body: "Block"


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in brackets or braces."""

    body: "Block"


Node = Simple | Pipeline | Chain | If | For | While | Case | Function | Group
Block = tuple[Node, ...]
