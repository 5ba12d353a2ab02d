"""Which values count as rewards."""

from fractions import Fraction

import pytest

from rlrun.runner.scoring.worker import MAX_REWARD, measured


@pytest.mark.parametrize("value", [0, 1.5, True, -MAX_REWARD, Fraction(1, 2), {"score": 3}])
def test_numbers_are_rewards(value):
    number = measured(value, "score" if isinstance(value, dict) else None)
    assert number == float(value["score"] if isinstance(value, dict) else value)


@pytest.mark.parametrize("value", [1e308, -1e308, float("inf"), float("nan"), 10**400, Fraction(10**400)])
def test_numbers_that_a_sum_could_not_hold_are_refused(value):
    with pytest.raises(ValueError, match=r"rewards are at most 1e\+30 in magnitude"):
        measured(value, None)
