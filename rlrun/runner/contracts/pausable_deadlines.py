"""Deadlines that are paused while engines are stopped, and while a request queues in an engine."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _PausableDeadline:
    """One deadline, which runs while nothing pauses it."""

    deadline: asyncio.Timeout
    remaining: float | None
    """Seconds until the deadline while it is paused; None for a deadline without an end."""
    pauses: int = 0

    def pause(self) -> None:
        self.pauses += 1
        when = self.deadline.when()
        if when is not None and not self.deadline.expired():
            self.remaining = max(0.0, when - asyncio.get_running_loop().time())
            self.deadline.reschedule(None)

    def resume(self) -> None:
        self.pauses -= 1
        if not self.pauses and self.remaining is not None and not self.deadline.expired():
            self.deadline.reschedule(asyncio.get_running_loop().time() + self.remaining)


class PausableDeadlines:
    """The deadlines of all requests to the engines."""

    def __init__(self) -> None:
        self._deadlines: dict[asyncio.Timeout, _PausableDeadline] = {}
        self._stopped = False

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """Like `asyncio.timeout`, but `stop` and `held` pause it."""
        async with asyncio.timeout(None if self._stopped else seconds) as deadline:
            self._deadlines[deadline] = _PausableDeadline(deadline, seconds, int(self._stopped))
            try:
                yield deadline
            finally:
                del self._deadlines[deadline]

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
