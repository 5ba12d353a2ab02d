import asyncio
import threading

import pytest

from rlrun.runner.host.background import cancel_all, finish_when_cancelled, in_background, with_deadline
from rlrun.runner.prompts.prefetcher import Prefetcher


async def test_work_in_the_background_answers_or_raises() -> None:
    assert await in_background(max, 1, 2) == 2
    with pytest.raises(ValueError, match="invalid literal"):
        await in_background(int, "x")


async def test_work_that_hangs_does_not_keep_the_job() -> None:
    gate = threading.Event()
    task = asyncio.create_task(in_background(gate.wait))
    await asyncio.sleep(0)
    await cancel_all([task])
    assert task.cancelled()
    gate.set()


async def test_a_task_that_swallows_its_cancellation_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.runner.host.background._CANCEL_AGAIN_SECONDS", 0.01)
    asked = 0

    async def stubborn() -> None:
        nonlocal asked
        while asked < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                asked += 1

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_all([task])
    assert asked == 3


async def test_work_that_has_to_be_done_is_not_cut_short() -> None:
    begun, gate, done = asyncio.Event(), asyncio.Event(), []

    async def end_everything() -> None:
        begun.set()
        await gate.wait()
        done.append("everything")

    task = asyncio.create_task(finish_when_cancelled(end_everything()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["everything"]


async def test_an_answer_that_is_there_is_in_time() -> None:
    """As after this process was stopped for longer than the deadline."""

    async def unread() -> str:
        for _ in range(3):
            await asyncio.sleep(0)
        return "well"

    assert await with_deadline(unread(), 0.0) == "well"


async def test_no_answer_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.runner.host.background._UNREAD_SECONDS", 0.01)
    silent = asyncio.create_task(asyncio.Event().wait())
    with pytest.raises(TimeoutError):
        await with_deadline(silent, 0.01)
    await asyncio.wait([silent])
    assert silent.cancelled()


def numbers() -> Prefetcher[int]:
    place = 0

    def fetch() -> list[int]:
        nonlocal place
        place += 2
        return [place - 2, place - 1]

    def seek(state: dict[str, int]) -> None:
        nonlocal place
        place = state["place"]

    return Prefetcher(fetch, lambda: {"place": place}, seek)


async def test_reading_ahead_does_not_move_the_place() -> None:
    reader = numbers()
    assert reader.state() == {"place": 0}
    assert await reader.next() == [0, 1]
    await asyncio.sleep(0.01)
    assert reader.state() == {"place": 2}
    assert await reader.next() == [2, 3]
    await reader.restore({"place": 2})
    assert await reader.next() == [2, 3]
    await reader.close()


async def test_a_read_error_is_raised_when_the_result_is_awaited() -> None:
    def fetch() -> list[int]:
        raise ValueError("broken row")

    reader = Prefetcher(fetch, dict, lambda state: None)
    with pytest.raises(ValueError, match="broken row"):
        await reader.next()
    await reader.close()
