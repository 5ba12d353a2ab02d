"""Deadlines that do not run while engines are stopped, or while a request queues."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Clock:
    """One deadline, which runs while nothing holds it."""

    deadline: asyncio.Timeout
    remaining: float | None
    """Seconds that the deadline has left while it is held; None: it has no end."""
    holds: int = 0

    def hold(self) -> None:
        self.holds += 1
        when = self.deadline.when()
        if when is not None and not self.deadline.expired():
            self.remaining = max(0.0, when - asyncio.get_running_loop().time())
            self.deadline.reschedule(None)

    def let_go(self) -> None:
        self.holds -= 1
        if not self.holds and self.remaining is not None and not self.deadline.expired():
            self.deadline.reschedule(asyncio.get_running_loop().time() + self.remaining)


class PausableDeadlines:
    """Keeps the deadlines of everything that asks the engines."""

    def __init__(self) -> None:
        self._clocks: dict[asyncio.Timeout, _Clock] = {}
        self._stopped = False

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """`asyncio.timeout`, held by `stop` and by `held`."""
        async with asyncio.timeout(None if self._stopped else seconds) as deadline:
            self._clocks[deadline] = _Clock(deadline, seconds, int(self._stopped))
            try:
                yield deadline
            finally:
                del self._clocks[deadline]

    @contextmanager
    def held(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Holds one deadline of `timeout`, also together with `stop`; it may end meanwhile."""
        clock = self._clocks.get(deadline)
        if clock is not None:
            clock.hold()
        try:
            yield
        finally:
            if clock is not None and deadline in self._clocks:
                clock.let_go()

    def stop(self) -> None:
        """Hold every deadline."""
        if not self._stopped:
            self._stopped = True
            for clock in self._clocks.values():
                clock.hold()

    def resume(self) -> None:
        """Let every deadline run on."""
        if self._stopped:
            self._stopped = False
            for clock in self._clocks.values():
                clock.let_go()
