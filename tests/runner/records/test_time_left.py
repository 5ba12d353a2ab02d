import pytest

from rlrun.runner.records.time_left import StepSeconds, TimeLeft, seconds_left

GROWING = [float(number) for number in range(1, 11)]


@pytest.mark.parametrize(
    ("work", "remaining", "expected"),
    [
        pytest.param([], 5, None, id="no step yet"),
        pytest.param([3.0], 5, 15.0, id="one step"),
        pytest.param([2.0] * 10, 5, 10.0, id="steps of one length"),
        pytest.param([2.0] * 10, 0, 0.0, id="none remains"),
        pytest.param(GROWING, 5, 11.0 + 12 + 13 + 14 + 15, id="responses grow"),
        pytest.param(GROWING, 20, sum(range(11, 21)) + 10 * 20.0, id="growth is followed as far as was seen"),
        pytest.param([10.0, 8.0, 6.0, 4.0, 2.0], 10, 20.0, id="never faster than the fastest step"),
        pytest.param([60.0, *[2.0] * 9], 5, 10.0, id="the first step compiles"),
        pytest.param([60.0, 2.0], 4, 8.0, id="the first of two steps compiles"),
        pytest.param([1.0, 2.0, 3.0], 4, 8.0, id="three steps have no trend"),
        pytest.param([2.0] * 9 + [30.0], 5, 10.0, id="one slow step is no trend"),
    ],
)
def test_seconds_left(work: list[float], remaining: int, expected: float | None) -> None:
    assert seconds_left([StepSeconds(seconds) for seconds in work], remaining) == pytest.approx(expected)


def test_growing_steps_take_longer_than_their_mean_says() -> None:
    """Steps that slow down from 1 s to 10 s: the mean since the start would say 55 s for ten more."""
    left = seconds_left([StepSeconds(seconds) for seconds in GROWING], 10)
    assert left == pytest.approx(155.0)


def test_evaluations_and_checkpoints_count_with_their_share_and_are_no_trend() -> None:
    steps = [StepSeconds(2.0, 10.0 if number % 5 == 4 else 0.0) for number in range(10)]
    assert seconds_left(steps, 10) == pytest.approx(10 * 2.0 + 2 * 10.0)


def test_the_estimate_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("rlrun.runner.records.time_left.time.monotonic", lambda: now[0])
    left = TimeLeft()
    left.begin(0, 4)
    now[0] += 50.0
    assert left.add(0, None) is None, "the evaluation before the first step is not part of a step"
    now[0] += 3.0
    assert left.add(1, 2.0) == pytest.approx(3 * 3.0)
    now[0] += 2.0
    assert left.add(2, 2.0) == pytest.approx(2 * 2.5)
    now[0] += 500.0
    left.go_back(1)
    now[0] += 2.0
    assert left.add(2, 2.0) == pytest.approx(2 * (2.0 + 1 / 3)), (
        "a restart of the trainer is not part of a step"
    )
