"""Evaluates the arithmetic of a shell script: `$((…))`, `((…))`."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+)|\$?\{?(?P<name>[A-Za-z_]\w*)\}?"
    r"|(?P<symbol>\*\*|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%]=|[-+*/%<>=!~&|^?:,()]))"
)
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"))
_LEVELS += (("+", "-"), ("*", "/", "%"))  # type: ignore[assignment]
_LIMIT = 1 << 63
_MAX_DEPTH = 30


def _divide(left: int, right: int) -> int:
    """Divides and rounds towards zero, as the shell does."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "||": lambda left, right: int(bool(left) or bool(right)),
    "&&": lambda left, right: int(bool(left) and bool(right)),
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "<<": lambda left, right: left << min(max(right, 0), 64),
    ">>": lambda left, right: left >> min(max(right, 0), 64),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": lambda left, right: left - _divide(left, right) * right,
}


def evaluate(expression: str, read: Callable[[str], str | None], write: Callable[[str, int], None]) -> int:
    """Returns the value of an expression. Raises ValueError if it cannot be known.

    `read` returns a variable's text, or None if the script does not set it; `write` sets a variable.
    """
    return _Evaluation(_symbols(expression), read, write).result()


def _symbols(expression: str) -> list[str]:
    symbols, at, text = [], 0, expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{expression} is not an arithmetic expression")
        symbols.append(match["number"] or match["name"] or match["symbol"])
        at = match.end()
    return symbols


@dataclass(slots=True)
class _Evaluation:
    """A recursive-descent parser that evaluates while it reads; each method reads one level of precedence."""

    symbols: list[str]
    read: Callable[[str], str | None]
    write: Callable[[str, int], None]
    position: int = 0
    depth: int = 0

    def result(self) -> int:
        """Evaluates expressions that are separated by commas; returns the value of the last one."""
        value = self.assignment()
        while self.take(","):
            value = self.assignment()
        if self.position < len(self.symbols):
            raise ValueError(f"{self.symbols[self.position]} is not expected here")
        return value

    def assignment(self) -> int:
        """Evaluates `NAME = …`, `NAME += …`, or a conditional expression."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError("the expression is nested too deeply")
        name, following = (*self.symbols[self.position : self.position + 2], "", "")[:2]
        if re.match(r"[A-Za-z_]", name) and following in ("=", "+=", "-=", "*=", "/=", "%="):
            self.position += 2
            value = self.assignment()
            result = value if following == "=" else self.apply(following[0], self.variable(name), value)
            self.write(name, result)
        else:
            result = self.conditional()
        self.depth -= 1
        return result

    def conditional(self) -> int:
        """Evaluates `CONDITION ? VALUE : VALUE`."""
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        first = self.assignment()
        self.take(":")
        second = self.assignment()
        return first if condition else second

    def binary(self, level: int) -> int:
        """Evaluates operators of a level and of all levels that bind more tightly."""
        if level == len(_LEVELS):
            return self.power()
        value = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            symbol = self.peek()
            self.position += 1
            value = self.apply(symbol, value, self.binary(level + 1))
        return value

    def power(self) -> int:
        """Evaluates `BASE ** EXPONENT`."""
        base = self.unary()
        if not self.take("**"):
            return base
        exponent = self.power()
        if not 0 <= exponent < 64:
            raise ValueError("the exponent is out of range")
        return self.bounded(base**exponent)

    def unary(self) -> int:
        """Evaluates signs, negations, increments, brackets, numbers and names."""
        symbol = self.peek()
        self.position += 1
        if symbol in ("+", "-", "!", "~"):
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise ValueError("the expression has too many signs")
            value = self.unary()
            self.depth -= 1
            return {"+": value, "-": -value, "!": int(not value), "~": ~value}[symbol]
        if symbol in ("++", "--"):
            return self.step(self.peek(), symbol, before=True)
        if symbol == "(":
            value = self.assignment()
            if not self.take(")"):
                raise ValueError("a bracket is never closed")
            return value
        if symbol[:1].isdigit():
            return self.bounded(int(symbol, 16 if symbol[:2] in ("0x", "0X") else 10))
        if not symbol[:1].isidentifier():
            raise ValueError("a number is missing")
        if self.peek() in ("++", "--"):
            self.position -= 1
            return self.step(symbol, self.symbols[self.position + 1], before=False)
        return self.variable(symbol)

    def step(self, name: str, symbol: str, *, before: bool) -> int:
        """Evaluates `++NAME`, `NAME++`, `--NAME` and `NAME--`."""
        self.position += 1 if before else 2
        value = self.variable(name)
        changed = value + (1 if symbol == "++" else -1)
        self.write(name, changed)
        return changed if before else value

    def variable(self, name: str) -> int:
        """Returns a variable's value."""
        text = self.read(name)
        if text is None or not re.fullmatch(r"-?\d{1,18}", text.strip()):
            raise ValueError(f"{name} is not a number here")
        return int(text)

    def apply(self, symbol: str, left: int, right: int) -> int:
        """Returns the result of one operator."""
        if symbol in "/%" and not right:
            raise ValueError("division by zero")
        return self.bounded(int(_OPERATIONS[symbol](left, right)))

    def bounded(self, value: int) -> int:
        """Returns the value if it fits the shell's 64 bits; otherwise raises ValueError."""
        if abs(value) >= _LIMIT:
            raise ValueError("the number is too large")
        return value

    def peek(self) -> str:
        """Returns the symbol at this position; empty at the end."""
        return self.symbols[self.position] if self.position < len(self.symbols) else ""

    def take(self, symbol: str) -> bool:
        """Reads the next symbol if it is this one, and returns whether it was."""
        if self.peek() != symbol:
            return False
        self.position += 1
        return True
