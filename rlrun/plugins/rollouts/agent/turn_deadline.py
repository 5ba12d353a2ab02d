"""The deadline of an agent's turns, which does not run while the policy answers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class TurnDeadline:
    """Ends a block with TimeoutError when the agent takes too long for a turn.

    begin ──▶ request ─(stopped)─▶ answer ──▶ request ─(stopped)─▶ answer ──▶ end
          turn                            turn                           turn
    """

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds`: for each turn; None for no limit."""
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)
        self._answering = 0
        self._is_over = False

    @property
    def expired(self) -> bool:
        """Whether a turn took too long."""
        return self._timeout.expired()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Stops the deadline while the policy answers; requests may overlap."""
        self._answering += 1
        self._schedule()
        try:
            yield
        finally:
            self._answering -= 1
            self._schedule()

    def _schedule(self) -> None:
        if self._seconds is None or self._timeout.expired() or self._is_over:
            return
        loop = asyncio.get_running_loop()
        self._timeout.reschedule(None if self._answering else loop.time() + self._seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        await self._timeout.__aexit__(kind, error, trace)
