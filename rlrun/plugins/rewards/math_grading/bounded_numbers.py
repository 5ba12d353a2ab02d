"""Arithmetic that stays cheap: NotAnExpression where a number would be too large to go on with."""

from typing import Any

from mpmath import mp

from rlrun.plugins.rewards.math_grading.expression_tokens import NotAnExpression

LARGEST_EXPONENT = 1000
LARGEST_FACTORIAL = 200
LARGEST_BITS = 4000


def bounded(value: Any) -> Any:
    """The value, unless it is infinite or so large that the next function of it would be costly."""
    if not mp.isfinite(value) or mp.mag(value) > LARGEST_BITS:
        raise NotAnExpression("a value is too large")
    return value


def power(base: Any, exponent: Any) -> Any:
    """base ** exponent."""
    _check_exponent(exponent)
    return bounded(base**exponent)


def exponential(exponent: Any) -> Any:
    """e ** exponent."""
    _check_exponent(exponent)
    return mp.exp(exponent)


def factorial(value: Any) -> Any:
    """1 · 2 · … · value."""
    if not mp.isint(value) or not 0 <= value <= LARGEST_FACTORIAL:
        raise NotAnExpression("a factorial of no small whole number")
    return mp.factorial(value)


def binomial(above: Any, below: Any) -> Any:
    """The binomial coefficient, of any small numbers."""
    if max(abs(above), abs(below)) > LARGEST_FACTORIAL:
        raise NotAnExpression("a binomial coefficient of numbers that are not small")
    return bounded(mp.binomial(above, below))


def _check_exponent(exponent: Any) -> None:
    if abs(exponent) > LARGEST_EXPONENT:
        raise NotAnExpression("an exponent is too large")
