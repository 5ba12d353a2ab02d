"""Deadlines that do not run while the engines are stopped: waiting for new weights is nobody's fault."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Patience:
    """Keeps the deadlines of everything that asks the engines."""

    def __init__(self) -> None:
        self._deadlines: dict[asyncio.Timeout, float | None] = {}
        """With the seconds that each has left, while they are held."""
        self._held = False

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """`asyncio.timeout`, held by `stop`."""
        async with asyncio.timeout(None if self._held else seconds) as deadline:
            if seconds is not None:
                self._deadlines[deadline] = seconds
            try:
                yield deadline
            finally:
                self._deadlines.pop(deadline, None)

    def stop(self) -> None:
        """Hold every deadline."""
        if self._held:
            return
        self._held = True
        now = asyncio.get_running_loop().time()
        for deadline in self._deadlines:
            when = deadline.when()
            if when is not None and not deadline.expired():
                self._deadlines[deadline] = max(0.0, when - now)
                deadline.reschedule(None)

    def resume(self) -> None:
        """Let every deadline run on."""
        if not self._held:
            return
        self._held = False
        now = asyncio.get_running_loop().time()
        for deadline, left in self._deadlines.items():
            if left is not None and not deadline.expired():
                deadline.reschedule(now + left)
