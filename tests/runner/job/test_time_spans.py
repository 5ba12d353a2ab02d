import pytest

from rlrun.runner.job.time_spans import Times, gaps, merge, overlap


@pytest.mark.parametrize(
    ("times", "merged"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(2, 3), (0, 1)], [(0, 1), (2, 3)], id="apart"),
        pytest.param([(0, 2), (1, 3), (3, 4)], [(0, 4)], id="overlapping and touching"),
        pytest.param([(0, 9), (1, 2)], [(0, 9)], id="one within another"),
    ],
)
def test_merge(times: Times, merged: Times) -> None:
    assert merge(times) == merged


def test_the_time_in_which_only_one_of_two_works() -> None:
    waiting, rewards, engines = [(0, 10)], [(2, 5), (6, 12)], [(1, 3), (7, 8)]
    assert overlap(overlap(waiting, rewards), gaps(engines)) == [(3, 5), (6, 7), (8, 10)]
