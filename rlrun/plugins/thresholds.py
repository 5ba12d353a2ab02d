"""Comparisons of computed numbers with bounds that somebody wrote: in floats 0.6 + 0.3 + 0.1 is below 1."""

import math

TOLERANCE = 1e-9
"""Relative to the larger number, and absolute below 1: far above rounding, far below what a reward means."""


def reaches(value: float, bound: float) -> bool:
    """Whether value >= bound, or falls short of it by rounding alone."""
    return value >= bound or _is_close(value, bound)


def exceeds(value: float, bound: float) -> bool:
    """Whether value > bound by more than rounding."""
    return value > bound and not _is_close(value, bound)


def _is_close(value: float, bound: float) -> bool:
    return math.isclose(value, bound, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
