"""Pausable deadlines, with a clock that only the test advances."""

import asyncio

import pytest

from rlrun.runner.contracts.pausable_deadlines import PausableDeadlines


class Clock:
    """The event loop's time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)


async def test_a_paused_deadline_does_not_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, patience = Clock(monkeypatch), PausableDeadlines()
    async with patience.timeout(10) as deadline:
        assert deadline.when() == 110
        clock.now = 104
        patience.stop()
        assert deadline.when() is None
        clock.now = 5000
        patience.stop()  # told twice
        patience.resume()
        assert deadline.when() == 5006
        clock.now = 5001
        patience.resume()
        assert deadline.when() == 5006
        clock.now = 5004
        patience.stop()
        clock.now = 6000
        patience.resume()
        assert deadline.when() == 6002


async def test_a_deadline_that_begins_during_a_pause_has_all_its_time_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, patience = Clock(monkeypatch), PausableDeadlines()
    patience.stop()
    async with patience.timeout(10) as deadline:
        assert deadline.when() is None
        clock.now = 5000
        patience.resume()
        assert deadline.when() == 5010


async def test_work_without_a_deadline_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    patience = PausableDeadlines()
    async with patience.timeout(None) as deadline:
        patience.stop()
        patience.resume()
        assert deadline.when() is None


async def test_a_deadline_that_is_over_stays_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, patience = Clock(monkeypatch), PausableDeadlines()
    with pytest.raises(TimeoutError):
        async with patience.timeout(10):
            clock.now = 110
            try:
                await asyncio.Event().wait()
            finally:
                patience.stop()
                patience.resume()


async def test_a_deadline_may_be_held_alone_several_times_and_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, patience = Clock(monkeypatch), PausableDeadlines()
    async with patience.timeout(10) as deadline, patience.timeout(20) as other:
        clock.now = 104
        with patience.held(deadline):
            assert (deadline.when(), other.when()) == (None, 120)
            with patience.held(deadline):
                clock.now = 110
            patience.stop()
            clock.now = 115
        assert (deadline.when(), other.when()) == (None, None)
        patience.resume()
        assert (deadline.when(), other.when()) == (121, 125)


async def test_a_deadline_may_end_while_it_is_held() -> None:
    patience = PausableDeadlines()
    async with patience.timeout(10) as deadline:
        hold = patience.held(deadline)
        hold.__enter__()
    hold.__exit__(None, None, None)
