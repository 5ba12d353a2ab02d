"""Estimates which of the unanswered requests the engines work on, and which still queue in an engine.

    sent first ──▶ [ running: at most `capacity` samples ] [ queueing ] ◀── sent last

Engines do not report when they take a request out of their queue. They take requests in the order of arrival,
so a request is taken at the latest when it and the unfinished requests before it fit into all engines.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class PendingRequests:
    """The requests that have not been answered, in the order in which they were sent."""

    def __init__(self, capacity: int | None = None) -> None:
        """`capacity`: samples that all engines decode at once; None: no request ever queues."""
        self.capacity = capacity
        self._running = 0
        """Samples of the requests that have been taken."""
        self._queued: dict[asyncio.Future[None], int] = {}
        """The requests that queue, with their samples."""

    @contextmanager
    def enter(self, samples: int) -> Iterator[asyncio.Future[None]]:
        """Counts a request as pending during the block; the future is done once engines work on it."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued[admitted] = samples
        self._advance()
        try:
            yield admitted
        finally:
            if self._queued.pop(admitted, None) is None:
                self._running -= samples
            self._advance()

    def _advance(self) -> None:
        """Marks the next requests as running while they fit; a request above the capacity runs alone."""
        while self._queued:
            admitted, samples = next(iter(self._queued.items()))
            if self.capacity is not None and self._running and self._running + samples > self.capacity:
                return
            del self._queued[admitted]
            self._running += samples
            if not admitted.done():
                admitted.set_result(None)
