"""Runs work beside the job's main task, and ends it without holding the job up."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")

_CANCEL_AGAIN_SECONDS = 1.0
_UNREAD_SECONDS = 2.0
"""If this process was suspended past a deadline, the event loop may still have to read an answer."""


async def in_background(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Runs `function` in a new daemon thread, and returns its result.

    On cancellation the thread keeps running, but nothing waits for it: unlike the threads of an executor, a
    daemon thread does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (function(*args, **kwargs), None)
        except BaseException as error:
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, name=function.__name__, daemon=True).start()
    return await future


async def finish_when_cancelled(work: Awaitable[Result]) -> Result:
    """Returns the result of `work`. On cancellation, waits for `work` to end before raising it."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


async def with_deadline(work: Awaitable[Result], seconds: float) -> Result:
    """Returns the result of `work`; TimeoutError after `seconds` without one.

    A result that arrived while this process was suspended still counts.
    """
    working = asyncio.ensure_future(work)
    try:
        for wait in (seconds, _UNREAD_SECONDS):
            await asyncio.wait([working], timeout=wait)
            if working.done():
                return working.result()
        raise TimeoutError
    finally:
        working.cancel()


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels tasks and returns when all have ended; a task that swallows the cancellation gets another."""
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_SECONDS)
