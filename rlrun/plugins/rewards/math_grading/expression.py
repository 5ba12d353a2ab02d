r"""Compares two expressions by evaluating both at a few points, to 60 digits.

    sum = product {("+" | "-") product}    product = factor {["*" | "/"] factor}    factor = ["-" | "+"] power
    power = atom ["^" factor]    atom = number | letter | "(" sum ")" | \frac{}{} | \sqrt[]{} | \sin^2 power …

Nothing is executed or simplified, and every number is bounded, so that no answer takes more than milliseconds
or much memory: `9^{9^{9}}` is refused instead of computed.
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
DEEPEST_NESTING = 40
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
MAX_EXPONENT = 1000
MAX_FACTORIAL = 200
MAX_BITS = 4000
MAX_TEXT_LENGTH = 400
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,50}(?:\.\d{1,50})?(?:[eE][+-]?\d{1,3})?(?![\d.]))|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<base>_(?:[0-9a-z]|\{[^{}]{1,20}\}))|(?P<letter>[a-zA-Z](?:_\{?\w+\}?)?)|(?P<symbol>[-+*/^!()\[\]{}·×÷]))"
)
_WORD = re.compile(r"(?<![\\a-zA-Z])(sqrt|arcsin|arccos|arctan|sin|cos|tan|ln|log|exp|pi)(?![a-zA-Z])")
_RUN_OF_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")


def expressions_are_equal(left: str, right: str) -> bool:
    """Returns whether both texts are expressions with the same value at every point."""
    try:
        tokens = tokenise(left), tokenise(right)
        with mp.workdps(DIGITS):
            return all(
                _close(*(_Evaluation(side, point).value() for side in tokens)) for point in range(POINTS)
            )
    except (NotAnExpression, ZeroDivisionError, OverflowError):
        return False


def values_at_points(text: str) -> tuple[Any, ...]:
    """Returns an expression's values at a few points, where each letter stands for a random number.

    A letter has the same number in every expression. Raises NotAnExpression, ZeroDivisionError or
    OverflowError if the expression has no value.
    """
    tokens = tokenise(text)
    with mp.workdps(DIGITS):
        return tuple(_Evaluation(tokens, point).value() for point in range(POINTS))


def _close(left: Any, right: Any) -> bool:
    return bool(abs(left - right) <= TOLERANCE * max(1, abs(left), abs(right)))


@cache
def _letter(name: str, point: int) -> Any:
    """Returns a letter's value at a point: e and i are constants, other letters random numbers of either
    sign.
    """
    if name in {"e", "i"}:
        return +mp.e if name == "e" else mp.mpc(0, 1)
    return mp.mpf(random.Random(f"{name} {point}").uniform(-2, 2))


class _Evaluation:
    """Evaluates tokens at one point by recursive descent; each method reads one rule of the grammar above."""

    def __init__(self, tokens: list[str], point: int) -> None:
        self._tokens = tokens
        self._point = point
        self._position = 0
        self._depth = 0

    def value(self) -> Any:
        value = self._sum()
        if self._peek():
            raise NotAnExpression(f"unexpected {self._peek()}")
        return value

    def _sum(self) -> Any:
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            raise NotAnExpression("the expression is nested too deeply")
        value = self._product()
        while self._peek() in {"+", "-"}:
            sign = 1 if self._next() == "+" else -1
            value = check_size(value + sign * self._product())
        self._depth -= 1
        return value

    def _product(self) -> Any:
        value = self._factor()
        while True:
            token = self._peek()
            if token in _OVER:
                self._next()
                value = check_size(value / self._factor())
            elif token in _TIMES:
                self._next()
                value = check_size(value * self._factor())
            elif token and (token[0].isalnum() or token[0] in "\\([{"):
                value = check_size(value * self._power())
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
            base = factorial(base)
        if self._peek() != "^":
            return base
        self._next()
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            raise NotAnExpression("the expression is nested too deeply")
        exponent = self._factor()
        self._depth -= 1
        return power(base, exponent)

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
            return check_size(self._braced() / self._braced())
        if token == r"\sqrt":
            return self._root()
        if token == r"\exp":
            return exponential(self._atom())
        if token == r"\binom":
            return binomial(self._braced(), self._braced())
        if token in _FUNCTIONS:
            return self._function(token)
        raise NotAnExpression(f"unknown command {token}")

    def _function(self, name: str) -> Any:
        r"""Returns the function's value: `\sin^2 x` is the square of the sine, `\log_2 x` has base 2."""
        base, exponent = mp.e, mp.one
        if name == r"\log" and self._peek().startswith("_"):
            base = _Evaluation(tokenise(self._next()[1:].strip("{}")), self._point).value()
        if self._peek() == "^":
            self._next()
            exponent = self._atom()
            if mp.im(exponent) != 0 or mp.re(exponent) <= 0:
                raise NotAnExpression("a function to a negative power may be its inverse")
        value = check_size(_FUNCTIONS[name](self._power()))
        return power(value if base == mp.e else check_size(value / mp.log(base)), exponent)

    def _root(self) -> Any:
        if self._peek() != "[":
            return mp.sqrt(self._atom())
        self._next()
        degree = self._closed_by("]")
        return check_size(self._braced() ** (1 / degree))

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
            raise NotAnExpression("the expression ends too early")
        self._position += 1
        return token


def check_size(value: Any) -> Any:
    """Returns the value. Raises NotAnExpression if it is infinite, or so large that functions of it would be
    costly.
    """
    if not mp.isfinite(value) or mp.mag(value) > MAX_BITS:
        raise NotAnExpression("a value is too large")
    return value


def power(base: Any, exponent: Any) -> Any:
    """Returns base ** exponent."""
    _check_exponent(exponent)
    return check_size(base**exponent)


def exponential(exponent: Any) -> Any:
    """Returns e ** exponent."""
    _check_exponent(exponent)
    return mp.exp(exponent)


def factorial(value: Any) -> Any:
    """Returns 1 · 2 · … · value."""
    if not mp.isint(value) or not 0 <= value <= MAX_FACTORIAL:
        raise NotAnExpression("factorials are only defined for small whole numbers")
    return mp.factorial(value)


def binomial(above: Any, below: Any) -> Any:
    """Returns the binomial coefficient of two small numbers, which need not be whole."""
    if max(abs(above), abs(below)) > MAX_FACTORIAL:
        raise NotAnExpression("a binomial coefficient of numbers that are not small")
    return check_size(mp.binomial(above, below))


def _check_exponent(exponent: Any) -> None:
    if abs(exponent) > MAX_EXPONENT:
        raise NotAnExpression("an exponent is too large")


class NotAnExpression(ValueError):
    """A text that the grammar does not accept, or a value that is too large to compute."""


def tokenise(text: str) -> list[str]:
    """Returns numbers, letters, commands and symbols in order. Raises NotAnExpression for any other
    character.
    """
    text = _WORD.sub(r"\\\1", text).strip()
    if not text or len(text) > MAX_TEXT_LENGTH or _RUN_OF_LETTERS.search(text):
        raise NotAnExpression(text[:MAX_TEXT_LENGTH])
    tokens, position = [], 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise NotAnExpression(text)
        tokens.append(token[0].strip())
        position = token.end()
    return tokens
