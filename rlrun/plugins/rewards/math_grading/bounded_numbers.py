"""Cheap arithmetic: raises NotAnExpression where a number would be too large to compute with."""

from typing import Any

from mpmath import mp

from rlrun.plugins.rewards.math_grading.expression_tokens import NotAnExpression

LARGEST_EXPONENT = 1000
LARGEST_FACTORIAL = 200
LARGEST_BITS = 4000


def check_size(value: Any) -> Any:
    """Returns the value. Raises NotAnExpression if it is infinite, or so large that functions of it would be
    costly.
    """
    if not mp.isfinite(value) or mp.mag(value) > LARGEST_BITS:
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
    if not mp.isint(value) or not 0 <= value <= LARGEST_FACTORIAL:
        raise NotAnExpression("factorials are only defined for small whole numbers")
    return mp.factorial(value)


def binomial(above: Any, below: Any) -> Any:
    """Returns the binomial coefficient of two small numbers, which need not be whole."""
    if max(abs(above), abs(below)) > LARGEST_FACTORIAL:
        raise NotAnExpression("a binomial coefficient of numbers that are not small")
    return check_size(mp.binomial(above, below))


def _check_exponent(exponent: Any) -> None:
    if abs(exponent) > LARGEST_EXPONENT:
        raise NotAnExpression("an exponent is too large")
