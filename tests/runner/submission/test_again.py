"""Whether a job is started again after an attempt."""

import signal

import pytest

from rlrun.runner.submission.again import Next, after_attempt
from rlrun.runner.submission.folder import Attempt


def attempts(*ended: tuple[int, int]) -> list[Attempt]:
    return [Attempt(id=f"1.{number}", code=code, step=step) for number, (code, step) in enumerate(ended)]


@pytest.mark.parametrize(
    ("ended", "from_outside", "follows"),
    [
        pytest.param([(0, 12)], False, Next.END, id="done"),
        pytest.param([(2, 0)], False, Next.END, id="the spec is wrong"),
        pytest.param([(3, 5)], False, Next.END, id="the job failed"),
        pytest.param([(130, 5)], False, Next.END, id="its user stopped it"),
        pytest.param([(75, 5)], False, Next.AGAIN, id="preempted"),
        pytest.param([(69, 5)], False, Next.AGAIN, id="a node was lost"),
        pytest.param([(-signal.SIGUSR1, 0)], False, Next.AGAIN, id="asked before it had a handler"),
        pytest.param([(-signal.SIGKILL, 5)], False, Next.END, id="killed"),
        pytest.param([(75, 5)], True, Next.END, id="the scheduler ends the job itself"),
        pytest.param([(75, 0), (75, 0)], False, Next.AGAIN, id="twice before the first step"),
        pytest.param([(75, 0), (75, 0), (75, 0)], False, Next.IDLE, id="never comes to a step"),
        pytest.param([(75, 5), (75, 5), (75, 5)], False, Next.AGAIN, id="the first of three saved"),
        pytest.param(
            [(75, 5), (75, 5), (69, 5), (75, 5)], False, Next.IDLE, id="three in a row saved nothing"
        ),
        pytest.param([(75, 0), (75, 0), (75, 4), (75, 4)], False, Next.AGAIN, id="one of three saved"),
        pytest.param([(75, 5), (75, 5), (75, 5), (0, 9)], False, Next.END, id="done after idle attempts"),
    ],
)
def test_what_follows_an_attempt(ended: list[tuple[int, int]], from_outside: bool, follows: Next) -> None:
    assert after_attempt(attempts(*ended), idle_attempts=3, ended_from_outside=from_outside) is follows
