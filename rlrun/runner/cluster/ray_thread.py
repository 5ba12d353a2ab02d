"""The thread that owns Ray.

Ray's processes end with the thread that started them, so it lives as long as the job. Ray's calls may block
for minutes where the GCS or the raylet has died, and cannot be interrupted: a caller that is cancelled leaves
its call to the thread, and the job ends without the thread if the call does not end.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class RayThread:
    """Runs calls to Ray, one after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open: set[asyncio.Future[Any]] = set()
        """The calls that have not ended."""

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Returns the result of `function`. On cancellation the call continues, and nothing waits for it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._open.add(answer)
        answer.add_done_callback(self._open.discard)

        def call() -> None:
            try:
                settle = partial(answer.set_result, function(*args))
            except BaseException as error:
                settle = partial(answer.set_exception, error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle)

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ray", daemon=True)
            self._thread.start()
        self._calls.put(call)
        return await asyncio.shield(answer)

    async def is_free(self, seconds: float) -> bool:
        """Returns whether all calls end within `seconds`."""
        if self._open:
            await asyncio.wait(list(self._open), timeout=seconds)
        return not self._open

    def stop(self) -> None:
        """Ends the thread after its calls, without waiting for it."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
