r"""Whether two expressions are equal: both are evaluated at a few points, to 60 digits.

    sum = product {("+" | "-") product}    product = factor {["*" | "/"] factor}    factor = ["-" | "+"] power
    power = atom ["^" factor]    atom = number | letter | "(" sum ")" | \frac{}{} | \sqrt[]{} | \sin power …

Nothing is executed or simplified, and every number is bounded, so that no answer takes more than milliseconds
or much memory: `9^{9^{9}}` is refused, not computed.
"""

import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath
from mpmath import mp

DIGITS = 60
TOLERANCE = mpmath.mpf(10) ** -40
POINTS = 3
LONGEST_TEXT = 400
DEEPEST_NESTING = 40
LARGEST_EXPONENT = 1000
LARGEST_FACTORIAL = 200
LARGEST_BITS = 4000

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,50}(?:\.\d{1,50})?(?:[eE][+-]?\d{1,3})?(?![\d.]))|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<letter>[a-zA-Z](?:_\{?\w+\}?)?)|(?P<symbol>[-+*/^!()\[\]{}·×÷]))"
)
_WORD = re.compile(r"(?<![\\a-zA-Z])(sqrt|arcsin|arccos|arctan|sin|cos|tan|ln|log|exp|pi)(?![a-zA-Z])")
_RUN_OF_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    r"\sin": mp.sin,
    r"\cos": mp.cos,
    r"\tan": mp.tan,
    r"\cot": mp.cot,
    r"\sec": mp.sec,
    r"\csc": mp.csc,
    r"\arcsin": mp.asin,
    r"\arccos": mp.acos,
    r"\arctan": mp.atan,
    r"\ln": mp.log,
    r"\log": mp.log,
}
_TIMES = {"*", "·", "×", r"\cdot", r"\times"}
_OVER = {"/", "÷", r"\div"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class NotAnExpression(ValueError):
    """Text that this grammar does not read, or a value too large to compute."""


def equal(left: str, right: str) -> bool:
    """Whether both are expressions with the same value at every point; False where one is none."""
    try:
        tokens = _tokens(left), _tokens(right)
        with mp.workdps(DIGITS):
            return all(
                _close(*(_Evaluation(part, point).value() for part in tokens)) for point in range(POINTS)
            )
    except (NotAnExpression, ZeroDivisionError, OverflowError):
        return False


def values_at_points(text: str) -> tuple[Any, ...]:
    """An expression's values where its letters stand for a few random numbers, the same for each letter.

    NotAnExpression, ZeroDivisionError or OverflowError where there are none.
    """
    tokens = _tokens(text)
    with mp.workdps(DIGITS):
        return tuple(_Evaluation(tokens, point).value() for point in range(POINTS))


def _close(left: Any, right: Any) -> bool:
    return bool(abs(left - right) <= TOLERANCE * max(1, abs(left), abs(right)))


def _tokens(text: str) -> list[str]:
    text = _WORD.sub(r"\\\1", text).strip()
    if not text or len(text) > LONGEST_TEXT or _RUN_OF_LETTERS.search(text):
        raise NotAnExpression(text[:LONGEST_TEXT])
    tokens, position = [], 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise NotAnExpression(text)
        tokens.append(found[0].strip())
        position = found.end()
    return tokens


@cache
def _letter(name: str, point: int) -> Any:
    """A letter's value at a point: e and i are constants, others anything, negative numbers included."""
    if name in {"e", "i"}:
        return +mp.e if name == "e" else mp.mpc(0, 1)
    return mp.mpf(random.Random(f"{name} {point}").uniform(-2, 2))


class _Evaluation:
    """One pass over the tokens, left to right."""

    def __init__(self, tokens: list[str], point: int) -> None:
        self._tokens = tokens
        self._point = point
        self._position = 0
        self._depth = 0

    def value(self) -> Any:
        value = self._sum()
        if self._peek():
            raise NotAnExpression(f"{self._peek()} is left over")
        return value

    def _sum(self) -> Any:
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            raise NotAnExpression("nested too deeply")
        value = self._product()
        while self._peek() in {"+", "-"}:
            sign = 1 if self._next() == "+" else -1
            value = _bounded(value + sign * self._product())
        self._depth -= 1
        return value

    def _product(self) -> Any:
        value = self._factor()
        while True:
            token = self._peek()
            if token in _OVER:
                self._next()
                value = _bounded(value / self._factor())
            elif token in _TIMES:
                self._next()
                value = _bounded(value * self._factor())
            elif token and (token[0].isalnum() or token[0] in "\\([{"):
                value = _bounded(value * self._power())
            else:
                return value

    def _factor(self) -> Any:
        sign = 1
        while self._peek() in {"+", "-"}:
            sign = sign if self._next() == "+" else -sign
        return sign * self._power()

    def _power(self) -> Any:
        base = self._atom()
        while self._peek() == "!":
            self._next()
            base = _factorial(base)
        if self._peek() != "^":
            return base
        self._next()
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            raise NotAnExpression("nested too deeply")
        exponent = self._factor()
        self._depth -= 1
        if abs(exponent) > LARGEST_EXPONENT:
            raise NotAnExpression("an exponent is too large")
        return _bounded(base**exponent)

    def _atom(self) -> Any:
        token = self._next()
        if token[0].isdigit():
            return mp.mpf(token)
        if token in _CLOSING:
            return self._closed_by(_CLOSING[token])
        if token[0].isalpha():
            return _letter(token, self._point)
        return self._command(token)

    def _command(self, token: str) -> Any:
        if token == r"\pi":
            return +mp.pi
        if token == r"\frac":
            return _bounded(self._braced() / self._braced())
        if token == r"\sqrt":
            return self._root()
        if token == r"\exp":
            return _exp(self._atom())
        if token in _FUNCTIONS:
            return _bounded(_FUNCTIONS[token](self._power()))
        raise NotAnExpression(f"{token} is not known")

    def _root(self) -> Any:
        if self._peek() != "[":
            return mp.sqrt(self._atom())
        self._next()
        degree = self._closed_by("]")
        return _bounded(self._braced() ** (1 / degree))

    def _braced(self) -> Any:
        if self._next() != "{":
            raise NotAnExpression("an argument needs braces")
        return self._closed_by("}")

    def _closed_by(self, closing: str) -> Any:
        value = self._sum()
        if self._next() != closing:
            raise NotAnExpression(f"{closing} is missing")
        return value

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise NotAnExpression("something is missing at the end")
        self._position += 1
        return token


def _bounded(value: Any) -> Any:
    """The value, unless it is infinite or so large that the next function of it would be costly."""
    if not mp.isfinite(value) or mp.mag(value) > LARGEST_BITS:
        raise NotAnExpression("a value is too large")
    return value


def _exp(exponent: Any) -> Any:
    if abs(exponent) > LARGEST_EXPONENT:
        raise NotAnExpression("an exponent is too large")
    return mp.exp(exponent)


def _factorial(value: Any) -> Any:
    if not mp.isint(value) or not 0 <= value <= LARGEST_FACTORIAL:
        raise NotAnExpression("a factorial of no small whole number")
    return mp.factorial(value)
