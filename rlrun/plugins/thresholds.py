"""Compares computed numbers with bounds from a spec, allowing for rounding: in floats, 0.6 + 0.3 + 0.1 is
below 1.
"""

import math

TOLERANCE = 1e-9
"""The tolerance, relative to the larger number, and absolute below 1. It is far above rounding errors and far
below meaningful differences of rewards."""


def reaches(value: float, bound: float) -> bool:
    """Returns whether value >= bound, or is below it only by rounding."""
    return value >= bound or _is_close(value, bound)


def exceeds(value: float, bound: float) -> bool:
    """Returns whether value > bound by more than rounding."""
    return value > bound and not _is_close(value, bound)


def _is_close(value: float, bound: float) -> bool:
    return math.isclose(value, bound, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
