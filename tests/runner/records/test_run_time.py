import pytest

from rlrun.runner.records.run_time import RunTime


def line(step: float, evaluation: float | None = None) -> dict[str, float | None]:
    return {"perf/step_time": step, "perf/eval_time": evaluation}


def test_a_run_without_losses() -> None:
    time = RunTime(began=100.0)
    time.begin(100.0, [])
    time.step(110.0, line(10.0))
    time.step(125.0, line(9.0, 6.0))
    assert (time.useful, time.total, time.goodput) == (25.0, 25.0, 1.0)


def test_what_is_neither_a_step_nor_an_evaluation_is_between_steps() -> None:
    time = RunTime(began=0.0)
    time.begin(20.0, [])
    time.step(23.0, {"perf/eval_time": 2.0})
    time.step(34.0, line(10.0))
    assert time.model_dump(exclude_defaults=True) == {
        "began": 0.0, "starting": 20.0, "between_steps": 2.0, "useful": 12.0,
    }  # fmt: skip


def test_a_failure_costs_the_steps_after_the_checkpoint_and_the_time_until_training_goes_on() -> None:
    time = RunTime(began=0.0)
    time.begin(0.0, [])
    for end in (10.0, 20.0, 30.0):
        time.step(end, line(10.0))
    time.go_back(50.0, [line(10.0)])
    assert (time.useful, time.repeated, time.recovering, time.total) == (10.0, 20.0, 20.0, 50.0)


def test_a_killed_launch_costs_its_unfinished_step_and_the_time_until_the_next_launch() -> None:
    time = RunTime(began=0.0)
    time.begin(5.0, [])
    time.step(15.0, line(10.0))
    time.launch_again(ended=19.0, now=119.0, was_done=False)
    time.begin(124.0, [line(10.0)])
    assert time.model_dump(exclude_defaults=True) == {
        "began": 0.0, "starting": 10.0, "useful": 10.0, "repeated": 4.0, "between_launches": 100.0,
    }  # fmt: skip


def test_a_run_that_was_done_lost_nothing_until_it_got_more_steps() -> None:
    time = RunTime(began=0.0)
    time.begin(0.0, [])
    time.step(10.0, line(10.0))
    time.end(12.0, is_done=True)
    time.launch_again(ended=12.0, now=1000.0, was_done=True)
    time.begin(1000.0, [line(10.0)])
    assert (time.useful, time.between_steps, time.total) == (10.0, 2.0, 12.0)


@pytest.mark.parametrize("now", [0.0, 99.0])
def test_a_clock_that_was_set_back_adds_nothing(now: float) -> None:
    time = RunTime(began=100.0)
    time.begin(now, [])
    time.step(now, line(10.0))
    assert (time.total, time.goodput) == (0.0, 0.0)


def test_steps_count_again_after_a_clock_was_set_back() -> None:
    time = RunTime(began=1000.0)
    time.begin(1000.0, [])
    time.step(1010.0, line(10.0))
    time.step(20.0, line(10.0))
    time.step(30.0, line(10.0))
    assert (time.useful, time.total) == (20.0, 20.0)


def test_a_launch_that_ended_in_the_future_does_not_stop_the_count() -> None:
    time = RunTime(began=1000.0)
    time.begin(1000.0, [])
    time.step(1010.0, line(10.0))
    time.launch_again(ended=9000.0, now=1020.0, was_done=False)
    time.begin(1020.0, [line(10.0)])
    time.step(1030.0, line(10.0))
    assert (time.useful, time.total) == (20.0, 30.0)


def test_seconds_of_a_damaged_file_are_refused_before_they_are_added() -> None:
    with pytest.raises(ValueError, match="starting"):
        RunTime.model_validate({"began": 1e9, "useful": 1.0, "starting": 1e308})


def test_an_end_in_whole_seconds_counts_no_time_twice() -> None:
    time = RunTime(began=1000.0)
    time.begin(1000.0, [])
    time.step(1010.75, line(10.0))
    time.launch_again(ended=1010.0, now=1020.0, was_done=False)
    assert (time.began, time.total, time.between_launches) == (1000.0, 20.0, 9.25)
