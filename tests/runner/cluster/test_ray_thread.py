"""The thread that owns Ray, when Ray does not answer."""

import asyncio
import threading

import pytest

from rlrun.runner.cluster.ray_thread import RayThread


async def test_calls_run_one_after_the_other_in_one_thread() -> None:
    thread = RayThread()
    idents = await asyncio.gather(*(thread.run(threading.get_ident) for _ in range(3)))
    assert len(set(idents)) == 1 and threading.get_ident() not in idents
    assert await thread.is_free(0.0)
    thread.stop()


async def test_an_error_is_raised() -> None:
    thread = RayThread()
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    assert await thread.run(lambda: 7) == 7
    thread.stop()


async def test_a_cancelled_call_is_not_waited_for() -> None:
    thread, answered = RayThread(), threading.Event()
    call = asyncio.create_task(thread.run(answered.wait))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert not await thread.is_free(0.0)
    answered.set()
    assert await thread.is_free(60.0)
    thread.stop()
