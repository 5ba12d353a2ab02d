"""Deadlines that are paused while engines are stopped, and while a request queues in an engine."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType


class _PausableDeadline:
    """One deadline, which runs while nothing pauses it. Its block is the body of an `async with`."""

    # A class, because nested generators would cost each request some microseconds more.
    __slots__ = ("_deadlines", "_pauses", "_remaining", "_timeout")

    def __init__(
        self, deadlines: "dict[asyncio.Timeout, _PausableDeadline]", seconds: float | None, pauses: int
    ):
        self._deadlines = deadlines
        self._remaining = seconds
        """Seconds until the deadline while it is paused; None for a deadline without an end."""
        self._pauses = pauses
        self._timeout = asyncio.timeout(None if pauses else seconds)

    async def __aenter__(self) -> asyncio.Timeout:
        self._deadlines[self._timeout] = self
        return await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._deadlines[self._timeout]
        await self._timeout.__aexit__(kind, error, trace)

    def pause(self) -> None:
        self._pauses += 1
        when = self._timeout.when()
        if when is not None and not self._timeout.expired():
            self._remaining = max(0.0, when - asyncio.get_running_loop().time())
            self._timeout.reschedule(None)

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses and self._remaining is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._remaining)


class PausableDeadlines:
    """The deadlines of all requests to the engines."""

    def __init__(self) -> None:
        self._deadlines: dict[asyncio.Timeout, _PausableDeadline] = {}
        self._stopped = False

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Like `asyncio.timeout`, but `stop` and `held` pause it."""
        return _PausableDeadline(self._deadlines, seconds, int(self._stopped))

    @contextmanager
    def held(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Pauses one deadline of `timeout` during the block, which may outlast the `timeout` block."""
        pausable = self._deadlines.get(deadline)
        if pausable is not None:
            pausable.pause()
        try:
            yield
        finally:
            if pausable is not None and deadline in self._deadlines:
                pausable.resume()

    def stop(self) -> None:
        """Pauses every deadline."""
        if not self._stopped:
            self._stopped = True
            for pausable in self._deadlines.values():
                pausable.pause()

    def resume(self) -> None:
        """Resumes every deadline."""
        if self._stopped:
            self._stopped = False
            for pausable in self._deadlines.values():
                pausable.resume()
