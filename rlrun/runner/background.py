"""Blocking work beside the event loop that must not keep a job from ending."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


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
