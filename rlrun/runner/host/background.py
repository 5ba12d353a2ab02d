"""Work beside the main line of a job that must not keep it from ending."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")

_ASK_AGAIN_SECONDS = 1.0
_UNREAD_SECONDS = 2.0


async def in_background(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Run `function` in a thread of its own. When this is cancelled the thread is left to itself."""
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
    """What `work` returns. It is not cut short where this is cancelled, which is told when it has ended."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


async def with_deadline(work: Awaitable[Result], seconds: float) -> Result:
    """What `work` returns; TimeoutError past the deadline, but for an answer that is there and was not read,
    since this process itself stood still.
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
    """Cancel tasks and return when all have ended, however; one that swallows it is asked again."""
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=_ASK_AGAIN_SECONDS)
